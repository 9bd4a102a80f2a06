"""The program of the chart's test pod."""

import json
import os
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastgen_api import names

CHART = Path(__file__).resolve().parents[2] / "charts" / "fastgen"
STREAM_TEST = CHART / "files" / "stream_test.py"
stream_test = runpy.run_path(str(STREAM_TEST))


def test_stream_test_calls_the_url_of_the_api() -> None:
    environment = {"DEPLOYMENT": "chat", "DEPLOYMENT_NAMESPACE": "models"}
    assert stream_test["base_url"](environment) == names.url("chat", "models")
    secured = environment | {"SCHEME": "https"}
    assert stream_test["base_url"](secured) == names.url("chat", "models", tls=True)
    shared = environment | {"BALANCER": "all"}
    assert stream_test["base_url"](shared) == names.url("all", "models")
    client = stream_test["client_of"]("http://h", shared)
    assert client.headers[names.Header.MODEL] == "chat"


def test_stream_test_sends_the_key_of_its_secret(tmp_path: Path) -> None:
    client = stream_test["client_of"]("http://h", {"SECRET_DIRECTORY": str(tmp_path)})
    assert "authorization" not in client.headers
    (tmp_path / "apiKey").write_text("sk-1\n")
    client = stream_test["client_of"]("http://h", {"SECRET_DIRECTORY": str(tmp_path)})
    assert client.headers["authorization"] == "Bearer sk-1"


def events(*data: str) -> Iterator[str]:
    for item in data:
        yield f"data: {item}"
        yield ""


def chunk(text: str) -> str:
    return json.dumps({"choices": [{"delta": {"content": text}}]})


def test_stream_test_reads_the_pieces() -> None:
    role = json.dumps({"choices": [{"delta": {"role": "assistant"}}]})
    lines = events(role, chunk("Hel"), chunk("lo"), "[DONE]")
    assert list(stream_test["content_chunks"](lines)) == ["Hel", "lo"]


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        ((chunk("Hel"),), "broke off"),
        ((chunk("Hel"), json.dumps({"error": {"message": "out of blocks"}})), "out of blocks"),
        ((), "broke off"),
    ],
)
def test_stream_test_fails_on_a_broken_stream(data: tuple[str, ...], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        list(stream_test["content_chunks"](events(*data)))


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        ({"DEPLOYMENT": ""}, "test.deployment is not set"),
        ({"FASTGEN_TEST_URL": "http://127.0.0.1:9/v1"}, "cannot be reached"),
    ],
)
def test_stream_test_says_what_is_wrong(environment: dict[str, str], sentence: str) -> None:
    done = subprocess.run(
        [sys.executable, str(STREAM_TEST)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
