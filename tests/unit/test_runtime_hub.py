"""Models of a hub: a real server that speaks its endpoints, and the hub's own library."""

import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from checkpoint_files import write_gguf
from hub_server import BROKEN, COMMIT, DAMAGED, TOKEN, HubServer, serving_hub
from huggingface_hub import constants
from tiny_model import write_tiny_model

from fastgen_api.names import StartupFailure
from fastgen_runtime.models.checkpoint import open_checkpoint
from fastgen_runtime.sources.fetch import fetch, model_name
from fastgen_runtime.sources.hub_choice import choose_gguf, choose_weights
from fastgen_runtime.sources.hub_source import HubModel, parse_hub_source
from fastgen_runtime.startup_error import ModelError

SOURCE = "hf://test/tiny"
FOLDER_FILES = {
    "config.json",
    "tokenizer.json",
    "model.safetensors.index.json",
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A repository with more than is wanted, and the library's settings for it.

    It read its environment when it was imported: `test_the_environment…` lets it read anew.
    """
    folder = write_tiny_model(tmp_path / "repository")
    (folder / "pytorch_model.bin").write_bytes(b"pickle" * 1000)
    (folder / "modeling_tiny.py").write_text("raise SystemExit")
    (folder / "README.md").write_text("# Tiny")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with serving_hub(folder) as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        yield server


def failure(source: str = SOURCE) -> ModelError:
    with pytest.raises(ModelError) as raised:
        fetch(source)
    assert "\n" not in str(raised.value)
    return raised.value


def test_what_a_folder_needs_is_fetched_once(
    hub: HubServer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        path = fetch(SOURCE)
    assert set(hub.downloaded) == FOLDER_FILES == {file.name for file in path.iterdir()}
    assert hub.downloaded[0] == "config.json"
    assert all(tensor.read().size for tensor in open_checkpoint(path).tensors().values())
    (told,) = [vars(one) for one in caplog.records if one.message == "model of the hub"]
    assert (told["repository"], told["commit"]) == ("test/tiny", COMMIT)
    hub.reset()
    assert fetch(SOURCE) == fetch(f"{SOURCE}@{COMMIT}") == path
    assert hub.requests == ["GET /api/models/test/tiny"], "where the branch is now"


def test_the_cache_serves_without_a_hub(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    path = fetch(f"{SOURCE}@v1")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert fetch(f"{SOURCE}@v1") == path
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert fetch(f"{SOURCE}@v1") == path
    assert "HF_HUB_OFFLINE" in str(failure(f"{SOURCE}@main"))


@pytest.mark.usefixtures("hub")
def test_a_cache_without_listings_serves_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As older tools have filled it, or as somebody copied it."""
    path = fetch(f"{SOURCE}@v1")
    copied = shutil.copytree(tmp_path / "cache", tmp_path / "copied", symlinks=True)
    shutil.rmtree(copied / "models--test--tiny" / "trees")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(copied))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert fetch(f"{SOURCE}@v1") == copied / path.relative_to(tmp_path / "cache")
    (copied / path.relative_to(tmp_path / "cache") / "model-00002-of-00002.safetensors").unlink()
    assert "is not complete" in str(failure(f"{SOURCE}@v1"))


def test_an_unsupported_architecture_costs_no_download(hub: HubServer) -> None:
    write_tiny_model(hub.folder, architectures=["MambaForCausalLM"])
    error = failure()
    assert "MambaForCausalLM is not supported; supported: " in str(error)
    assert "LlamaForCausalLM" in str(error)
    assert error.reason is StartupFailure.MODEL_UNSUPPORTED
    assert hub.downloaded == ["config.json"]


def test_a_repository_of_one_gguf_file(hub: HubServer) -> None:
    for path in hub.folder.iterdir():
        path.unlink()
    write_gguf(hub.folder / "tiny.Q8_0.gguf")
    write_gguf(hub.folder / "tiny.Q8_0.gguf", architecture="mamba")
    assert "the GGUF architecture mamba is not supported" in str(failure())
    assert hub.downloaded == []
    write_gguf(hub.folder / "tiny.Q8_0.gguf")
    path = fetch(SOURCE)
    assert hub.downloaded == ["tiny.Q8_0.gguf"]
    assert open_checkpoint(path).config.num_layers == 1


def test_a_gguf_file_among_others(hub: HubServer) -> None:
    write_gguf(hub.folder / "a.gguf")
    write_gguf(hub.folder / "b.gguf")
    assert fetch(f"{SOURCE}@v1/b.gguf").name == "b.gguf"
    assert hub.downloaded == ["b.gguf"]
    assert "its GGUF files: a.gguf, b.gguf" in str(failure(f"{SOURCE}/c.gguf"))


def test_a_gated_model_says_how_to_get_in(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.is_gated = True
    assert f"accept its terms at {hub.url}/test/tiny, and give a token" in str(failure())
    assert failure().reason is StartupFailure.ACCESS_DENIED
    monkeypatch.setenv("HF_TOKEN", "hf_another")
    error = str(failure())
    assert "spec.model.tokenSecretRef (HF_TOKEN outside Kubernetes) has no access" in error
    assert "hf_another" not in error
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert fetch(SOURCE).is_dir()
    assert hub.tokens_on_content_network == []


def test_a_private_or_missing_model(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "check the name" in str(failure("hf://test/nothing"))
    hub.is_private = True
    assert "if it is private, give a token in spec.model.tokenSecretRef" in str(failure())
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert fetch(SOURCE).is_dir()


def test_an_unknown_revision(hub: HubServer) -> None:
    error = failure(f"{SOURCE}@v9")
    assert "names a revision that the hub does not have" in str(error)
    assert hub.downloaded == []


@pytest.mark.usefixtures("hub")
def test_no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("FASTGEN_DOWNLOAD_PATIENCE_SECONDS", "2")
    error = failure()
    assert "127.0.0.1:9 cannot be reached" in str(error)
    assert error.reason is StartupFailure.DOWNLOAD_FAILED


def test_a_broken_line_is_resumed(hub: HubServer) -> None:
    shard = "model-00001-of-00002.safetensors"
    hub.faults[shard].append(BROKEN)
    path = fetch(SOURCE)
    kept = (hub.folder / shard).stat().st_size // 2
    assert f"GET /content/{shard} bytes={kept}-" in hub.requests
    assert (path / shard).read_bytes() == (hub.folder / shard).read_bytes()


def test_a_damaged_file_is_fetched_once_more(hub: HubServer) -> None:
    shard = "model-00002-of-00002.safetensors"
    hub.faults[shard].append(DAMAGED)
    path = fetch(SOURCE)
    assert hub.downloaded.count(shard) == 2
    assert (path / shard).read_bytes() == (hub.folder / shard).read_bytes()


def test_a_file_that_stays_damaged_is_told_and_removed(hub: HubServer) -> None:
    shard = "model-00002-of-00002.safetensors"
    hub.always[shard] = DAMAGED
    error = failure()
    assert f"{shard} came twice with another SHA-256 than announced" in str(error)
    assert error.reason is StartupFailure.CHECKSUM_MISMATCH
    assert hub.downloaded.count(shard) == 2
    hub.always.clear()
    hub.reset()
    path = fetch(SOURCE)
    assert hub.downloaded == [shard]
    assert (path / shard).read_bytes() == (hub.folder / shard).read_bytes()


@pytest.mark.usefixtures("hub")
def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("no folder")
    assert "cannot be written: Not a directory; name another folder in HF_HOME" in str(failure())


@pytest.mark.parametrize(
    ("source", "model"),
    [
        ("hf://a/b", HubModel("a/b")),
        ("hf://a/b-1.5@main", HubModel("a/b-1.5", "main")),
        ("hf://a/b@refs/pr/3", HubModel("a/b", "refs/pr/3")),
        ("hf://a/b@x%2Fy", HubModel("a/b", "x/y")),
        ("hf://a/b/f.gguf", HubModel("a/b", None, "f.gguf")),
        ("hf://a/b@v1/sub/f.gguf", HubModel("a/b", "v1", "sub/f.gguf")),
    ],
)
def test_sources(source: str, model: HubModel) -> None:
    assert parse_hub_source(source) == model
    assert model_name(source, Path("/cache/snapshots/c")) == model.repository


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("hf://gpt2", "hf://owner/name"),
        ("hf://a/b@", "hf://owner/name"),
        ("hf://a/b/model.safetensors", "only GGUF files"),
        ("hf://a b/c", "hf://owner/name"),
    ],
)
def test_sources_that_name_nothing(source: str, words: str) -> None:
    assert words in str(failure(source))


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["config.json", "pytorch_model.bin"], "pickled weights"),
        (["README.md"], "no safetensors and no GGUF"),
        (["a.gguf", "b.gguf"], "name one, hf://a/b/FILE, of a.gguf, b.gguf"),
    ],
)
def test_repositories_without_what_we_read(names: list[str], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        choose_gguf(HubModel("a/b"), names)


def test_weights_in_two_layouts() -> None:
    names = ["config.json", "tokenizer.json", "model.safetensors", "consolidated.safetensors"]
    assert choose_weights("hf://a/b", names, {}) == ("model.safetensors",)
    index = {"weight_map": {"w": "m-1.safetensors", "v": "m-2.safetensors"}}
    with pytest.raises(ModelError, match=r"lacks m-2\.safetensors"):
        choose_weights("hf://a/b", ["config.json", "tokenizer.json", "m-1.safetensors"], index)
    with pytest.raises(ModelError, match=r"no tokenizer\.json"):
        choose_weights("hf://a/b", ["config.json", "model.safetensors"], {})


def run(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_the_environment_moves_hub_and_cache(hub: HubServer, tmp_path: Path) -> None:
    code = (
        "import sys; from fastgen_runtime.sources.fetch import fetch; before = set(sys.modules)\n"
    )
    code += f"path = fetch({SOURCE!r})\n"
    code += "print(path, 'torch' in sys.modules, 'huggingface_hub' in before)"
    home = tmp_path / "home"
    said = run(code, HF_ENDPOINT=hub.url, HF_HOME=str(home))
    snapshot = home / "hub" / "models--test--tiny" / "snapshots" / COMMIT
    assert said.split() == [str(snapshot), "False", "False"]
    assert json.loads((snapshot / "config.json").read_text())["hidden_size"] == 32


def test_a_saved_token_is_not_sent(hub: HubServer, tmp_path: Path) -> None:
    hub.is_gated = True
    home = tmp_path / "home"
    home.mkdir()
    (home / "token").write_text(TOKEN)
    code = "from fastgen_runtime.sources.fetch import fetch\n"
    code += f"try:\n    fetch({SOURCE!r})\nexcept Exception as error:\n    print(error)"
    assert "is gated" in run(code, HF_ENDPOINT=hub.url, HF_HOME=str(home))
