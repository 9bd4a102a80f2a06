"""Downloads on the disk: names, parts, locks, room, and a cache that others read, too."""

import fcntl
import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import huggingface_hub
import pytest
from hub_server import BROKEN, COMMIT, HubServer, git_hash, serving_hub
from huggingface_hub import constants
from tiny_model import write_tiny_model

from fastgen_api.names import StartupFailure
from fastgen_runtime.sources import transfer as transfers
from fastgen_runtime.sources.checksum import Checksum
from fastgen_runtime.sources.deliver import Order, deliver
from fastgen_runtime.sources.fetch import fetch
from fastgen_runtime.sources.gguf_head import check_gguf_head
from fastgen_runtime.sources.https_file import parse_https_source
from fastgen_runtime.sources.hub_cache import HubFile, RepositoryCache
from fastgen_runtime.sources.hub_info import read_info
from fastgen_runtime.sources.model import caches_in
from fastgen_runtime.sources.model_lock import model_lock
from fastgen_runtime.sources.partial import Partial
from fastgen_runtime.sources.patience import Limits, Patience
from fastgen_runtime.sources.progress import Progress
from fastgen_runtime.sources.transfer import RemoteFile, Transfer, check_room
from fastgen_runtime.sources.trouble import DownloadError
from fastgen_runtime.sources.web import Web
from fastgen_runtime.startup_error import ModelError


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubServer]:
    with serving_hub(write_tiny_model(tmp_path / "repository")) as server:
        yield server


@pytest.fixture
def transfer(hub: HubServer) -> Iterator[Transfer]:
    progress = Progress()
    web = Web(hub.url, None, 5)
    yield Transfer(web, Patience(Limits(), progress.waits), progress)
    web.close()


def remote(hub: HubServer, name: str, target: Path, checksum: Checksum | None = None) -> RemoteFile:
    size = (hub.folder / name).stat().st_size
    return RemoteFile(f"{hub.url}/files/{name}", name, size, target / name, checksum)


def test_what_an_https_source_is_kept_as() -> None:
    plain = parse_https_source("https://h:8443/a/b%20c.gguf?sig=x")
    assert plain.name == "b_c.gguf"
    assert plain.folder.parts[0] == "h"
    assert str(plain) == "https://h:8443/a/b%20c.gguf"
    again = parse_https_source("https://h:8443/a/b%20c.gguf?sig=x")
    checked = parse_https_source(f"https://h:8443/a/b%20c.gguf?sig=x#sha256={'0' * 64}")
    other = parse_https_source("https://h:8443/a/b%20c.gguf?sig=y")
    assert plain.folder == again.folder
    assert len({plain.folder, checked.folder, other.folder}) == 3
    assert (checked.url, checked.checksum) == (plain.url, Checksum("sha256", "0" * 64))


@pytest.mark.parametrize(
    "path", ["..%2F..%2Fetc%2Fm.gguf", "..gguf", "%00.gguf", "m" * 300 + ".gguf"]
)
def test_a_name_stays_in_its_folder(path: str) -> None:
    file = parse_https_source(f"https://h/{path}")
    assert file.name == Path(file.name).name
    assert file.name.endswith("gguf")
    assert 0 < len(file.name) <= 128
    assert ".." not in (file.folder / file.name).parts


def test_large_files_come_in_windows(
    hub: HubServer, transfer: Transfer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfers, "LARGEST_ANSWER_BYTES", 10_000)
    name = "model-00001-of-00002.safetensors"
    file = remote(hub, name, tmp_path)
    hub.faults[name].append(BROKEN)
    transfer.bring([file], tmp_path)
    assert (tmp_path / name).read_bytes() == (hub.folder / name).read_bytes()
    asked = [line.rpartition("=")[2] for line in hub.requests]
    assert asked[:3] == ["0-9999", "5000-14999", "15000-24999"], "the first broke off in its middle"
    assert asked[-1].endswith("-"), "the last is open"


def test_one_file_that_cannot_be_had_ends_the_others(
    hub: HubServer, transfer: Transfer, tmp_path: Path
) -> None:
    hub.bytes_per_second = 1000
    names = ["tokenizer.json", "model-00001-of-00002.safetensors"]
    files = [remote(hub, name, tmp_path) for name in names]
    (hub.folder / "broken").write_bytes(b"x" * 10)
    wrong = remote(hub, "broken", tmp_path, Checksum("sha256", "0" * 64))
    with pytest.raises(DownloadError, match="broken came twice"):
        transfer.bring([*files, wrong], tmp_path)
    assert not any(file.target.exists() for file in files)


def test_room(tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match=r"needs 1000000000\.0 GB more and .* GB left") as full:
        check_room(tmp_path / "not" / "there", 10**18)
    assert full.value.reason is StartupFailure.CACHE_FULL


SMALL_DISK = """
import sys
from pathlib import Path
from fastgen_runtime.sources.patience import Limits, Patience
from fastgen_runtime.sources.progress import Progress
from fastgen_runtime.sources.transfer import RemoteFile, Transfer
from fastgen_runtime.sources.web import Web
url, size, cache = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
progress = Progress()
transfer = Transfer(Web(url, None, 5), Patience(Limits(), progress.waits), progress)
file = RemoteFile(url, "m", size, cache / "m")
if "fills" in sys.argv:
    import fastgen_runtime.sources.transfer as module
    module.check_room = lambda cache, num_bytes: None
try:
    transfer.bring([file], cache)
except Exception as error:
    print(error.reason, error)
"""


@pytest.mark.parametrize("moment", ["before", "fills"])
def test_a_real_disk_that_is_too_small(hub: HubServer, tmp_path: Path, moment: str) -> None:
    """A file system of a tenth of a megabyte, in a mount namespace of the program's own."""
    data = hub.folder / "large"
    data.write_bytes(os.urandom(200_000))
    cache = tmp_path / "small"
    cache.mkdir()
    script = 'mount -t tmpfs -o size=100k tmpfs "$0" && exec "$@"'
    program = [sys.executable, "-c", SMALL_DISK, f"{hub.url}/files/large", "200000", str(cache)]
    command = ["unshare", "--map-root-user", "--mount", "sh", "-c", script, str(cache), *program]
    done = subprocess.run([*command, moment], capture_output=True, text=True, check=True)
    said = done.stdout.partition(":")[0]
    needs, left = ("0.2", "0.1") if moment == "before" else ("0.1", "0.0")
    words = f"CacheFull the download needs {needs} MB more and {cache} has {left} MB left"
    assert said == words, done.stdout + done.stderr
    assert ("large" in str(hub.sent_bytes)) is (moment == "fills")


def test_the_lock_lets_one_in_at_a_time(tmp_path: Path) -> None:
    told, order = [], []
    inside, may_go = threading.Event(), threading.Event()

    def first() -> None:
        with model_lock(tmp_path / "locks" / "m", lambda: told.append("first")):
            inside.set()
            may_go.wait(10)
            order.append("first")

    thread = threading.Thread(target=first)
    thread.start()
    inside.wait(10)

    def waits() -> None:
        told.append("second")
        may_go.set()

    with model_lock(tmp_path / "locks" / "m", waits):
        order.append("second")
    thread.join()
    assert (told, order) == (["second"], ["first", "second"])


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with model_lock(tmp_path / "m", pytest.fail):
        pass


def test_a_part_outlives_its_process(tmp_path: Path) -> None:
    partial = Partial(tmp_path / "m.incomplete")
    assert (partial.num_bytes, partial.validator) == (0, None)
    partial.begin('"v1"')
    with partial.open_at(0) as out:
        out.write(b"abc")
        assert Partial(partial.path).num_bytes == 3, "without a flush or close"
    again = Partial(partial.path)
    assert again.validator == '"v1"'
    with again.open_at(2) as out:
        out.write(b"d")
    again.become(tmp_path / "m")
    assert (tmp_path / "m").read_bytes() == b"abd"
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_notes_that_cannot_be_read_are_none(tmp_path: Path) -> None:
    for text in ("", "[]", '{"validator": 3}', '{"other": ""}'):
        (tmp_path / "m.json").write_text(text)
        assert Partial(tmp_path / "m").validator is None


def test_checksums(tmp_path: Path) -> None:
    path = tmp_path / "m"
    path.write_bytes(b"hello\n")
    assert Checksum("git", "").of(path) == git_hash(b"hello\n")
    assert Checksum("git", "").of(path) == "ce013625030ba8dba906f756967f9e9ca394464a"
    assert Checksum("sha256", "").of(path) == hashlib.sha256(b"hello\n").hexdigest()


def test_hugging_faces_own_library_reads_the_cache(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    path = fetch("hf://test/tiny@v1")
    names = [file.name for file in path.iterdir()]
    found = huggingface_hub.snapshot_download(
        "test/tiny", revision="v1", cache_dir=cache, local_files_only=True, allow_patterns=names
    )
    assert found == str(path)
    (repository,) = huggingface_hub.scan_cache_dir(cache).repos
    (revision,) = repository.revisions
    assert (revision.commit_hash, revision.refs) == (COMMIT, {"v1"})
    assert {file.file_name for file in revision.files} == set(names)
    assert revision.size_on_disk == sum(file.stat().st_size for file in path.iterdir())


def test_a_pinned_commit_outdoes_the_branch(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    order = Order("hf://test/tiny@gone", caches_in(tmp_path), Limits(), pinned=COMMIT)
    assert deliver(order, Progress()).revision == COMMIT
    with pytest.raises(DownloadError, match="hf://test/tiny@gone names a revision"):
        deliver(replace(order, pinned=None), Progress())


def test_what_a_hub_says(hub: HubServer) -> None:
    inside = {"rfilename": "a/b.gguf", "size": 1, "blobId": "0" * 40}
    outside = [inside | {"rfilename": name} for name in ("../b", "/b", "a/../../b")]
    answer = {"sha": COMMIT, "siblings": [inside, *outside]}
    commit, files = read_info(json.dumps(answer).encode(), hub.url)
    assert (commit, list(files)) == (COMMIT, ["a/b.gguf"])
    for wrong in ("<html>", "{}", {"sha": "../..", "siblings": []}, answer | {"siblings": [{}]}):
        text = wrong if isinstance(wrong, str) else json.dumps(wrong)
        with pytest.raises(DownloadError, match="does not answer as a Hugging Face Hub does"):
            read_info(text.encode(), hub.url)


def test_a_file_that_is_compressed_on_the_way_comes_as_it_is(
    hub: HubServer, transfer: Transfer, tmp_path: Path
) -> None:
    hub.compresses = True
    transfer.bring([remote(hub, "config.json", tmp_path)], tmp_path)
    assert (tmp_path / "config.json").read_bytes() == (hub.folder / "config.json").read_bytes()
    assert hub.sent_bytes["config.json"] < (hub.folder / "config.json").stat().st_size


def test_a_commits_listing_comes_back_as_it_went(tmp_path: Path) -> None:
    cache = RepositoryCache(tmp_path, "a/b")
    files = {
        "config.json": HubFile(3, Checksum("git", "a" * 40)),
        "model.safetensors": HubFile(9, Checksum("sha256", "b" * 64)),
    }
    cache.keep("refs/pr/3", COMMIT, files)
    fresh = RepositoryCache(tmp_path, "a/b")
    assert fresh.commit_of("refs/pr/3") == COMMIT
    assert fresh.files_of(COMMIT) == files
    assert fresh.commit_of("main") is None


def test_a_head_that_is_cut_anywhere(smollm2_path: Path) -> None:
    with smollm2_path.open("rb") as file:
        head = file.read(65536)
    for length in (24, 60, 1000, 65536):
        check_gguf_head(head[:length], "m")
    for data in (b"", b"GGU", b"<html>"):
        with pytest.raises(ModelError, match="m is no GGUF file"):
            check_gguf_head(data, "m")
