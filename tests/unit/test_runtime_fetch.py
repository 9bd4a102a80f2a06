"""Model sources: which are read, and what the others are told."""

from pathlib import Path

import pytest

from fastgen_api.names import StartupFailure
from fastgen_runtime.fetch import ModelSourceError, fetch


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


@pytest.mark.parametrize("scheme", ["hf", "pvc", "https"])
def test_schemes_to_come_are_named(scheme: str) -> None:
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
