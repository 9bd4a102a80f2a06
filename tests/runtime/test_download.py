"""`fastgen-download` against a real server in all its moods: what comes, and what is told."""

import os
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import numpy as np
import pytest
from certificates import make_certificate
from checkpoint_files import write_gguf
from download_process import Downloads, Ended
from hub_server import (
    API,
    BROKEN,
    COMMIT,
    CUT,
    DAMAGED,
    SIGNATURE,
    STALLED,
    TOKEN,
    Fault,
    HubServer,
    head_of,
    serving_hub,
    throttled,
)
from tiny_model import write_tiny_model

HUB = "hf://test/tiny"
SHARD = "model-00001-of-00002.safetensors"
GGUF = "tiny.gguf"
SNAPSHOT = f"huggingface/hub/models--test--tiny/snapshots/{COMMIT}"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubServer]:
    """A server with TLS that has a folder model as a repository, and a GGUF file beside it."""
    folder = write_tiny_model(tmp_path_factory.mktemp("server") / "repository")
    weights = np.random.default_rng(0).standard_normal((512, 512)).astype(np.float32)
    write_gguf(folder / GGUF, tensors={"blk.0.ffn_up.weight": weights})
    write_gguf(folder / "mamba.gguf", architecture="mamba", tensors={"weight": weights})
    (folder / "page.gguf").write_text("<html>" + " " * 200_000)
    certificate = make_certificate(folder.parent)
    with serving_hub(folder, certificate=certificate) as server:
        yield server


@pytest.fixture
def hub(made: HubServer) -> Iterator[HubServer]:
    """The server, as it was in the beginning."""
    before = {path: path.read_bytes() for path in made.folder.iterdir()}
    yield made
    for path, data in before.items():
        path.write_bytes(data)
    made.faults.clear()
    made.always.clear()
    made.listed_bytes.clear()
    made.is_gated = made.is_private = False
    made.has_ranges = made.has_etags = True
    made.bytes_per_second = None
    made.reset()


@pytest.fixture
def downloads(hub: HubServer, tmp_path: Path) -> Downloads:
    authority = str(hub.folder.parent / "ca.crt")
    return Downloads(tmp_path, {"HF_ENDPOINT": hub.url, "SSL_CERT_FILE": authority})


def https(hub: HubServer, name: str = GGUF, folder: str = "files") -> str:
    return f"{hub.url}/{folder}/{name}"


def wait_for(what: str, holds: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def is_same(hub: HubServer, downloads: Downloads, name: str) -> bool:
    """Whether the file has come as it is on the server."""
    (path,) = (path for path in downloads.cache.rglob(name) if path.is_file())
    return path.read_bytes() == (hub.folder / name).read_bytes()


def half(hub: HubServer, name: str) -> int:
    return (hub.folder / name).stat().st_size // 2


def kill_at_half(hub: HubServer, downloads: Downloads, source: str, name: str) -> None:
    """A first run that comes to half of the file, and is killed."""
    hub.faults[name].append(STALLED)
    running = downloads.start(source)
    try:
        wait_for("half of it", lambda: downloads.partial_bytes() == half(hub, name))
    finally:
        running.kill()
    hub.reset()


# What was begun is gone on with.


def test_a_killed_download_of_the_hub_asks_only_for_the_rest(
    hub: HubServer, downloads: Downloads
) -> None:
    kill_at_half(hub, downloads, f"{HUB}/{GGUF}", GGUF)
    ended = downloads.run(f"{HUB}/{GGUF}")
    assert ended.code == 0, ended.text
    assert f"GET /content/{GGUF} bytes={half(hub, GGUF)}-" in hub.requests
    assert hub.downloaded == []
    assert is_same(hub, downloads, GGUF)
    assert downloads.partial_bytes() == 0


def test_a_killed_download_over_https_asks_only_for_the_rest(
    hub: HubServer, downloads: Downloads
) -> None:
    kill_at_half(hub, downloads, https(hub), GGUF)
    ended = downloads.run(https(hub))
    assert ended.code == 0, ended.text
    assert f"GET /files/{GGUF} bytes={half(hub, GGUF)}-" in hub.requests
    assert hub.downloaded == []
    assert is_same(hub, downloads, GGUF)


def test_parts_of_two_versions_are_never_put_together(hub: HubServer, downloads: Downloads) -> None:
    kill_at_half(hub, downloads, https(hub), GGUF)
    data = (hub.folder / GGUF).read_bytes()
    (hub.folder / GGUF).write_bytes(data[:-1] + b"x")
    assert downloads.run(https(hub)).code == 0
    assert hub.downloaded == [GGUF], "from its first byte"
    assert is_same(hub, downloads, GGUF)


def test_without_a_version_a_file_is_begun_anew(hub: HubServer, downloads: Downloads) -> None:
    hub.has_etags = False
    kill_at_half(hub, downloads, https(hub), GGUF)
    assert downloads.run(https(hub)).code == 0
    assert hub.downloaded == [GGUF]
    assert is_same(hub, downloads, GGUF)


def test_a_server_without_ranges(hub: HubServer, downloads: Downloads) -> None:
    hub.has_ranges = False
    hub.faults[GGUF].append(BROKEN)
    assert downloads.run(https(hub)).code == 0
    assert is_same(hub, downloads, GGUF)


def test_a_second_run_finds_the_model(hub: HubServer, downloads: Downloads) -> None:
    for source in (HUB, https(hub)):
        assert downloads.run(source).code == 0
        hub.reset()
        assert downloads.run(source).code == 0
        assert hub.downloaded == []


def test_the_second_of_two_waits_and_finds_it(hub: HubServer, downloads: Downloads) -> None:
    hub.bytes_per_second = 1_000_000
    first, second = downloads.start(https(hub)), downloads.start(https(hub))
    ended = [first.end(), second.end()]
    assert [one.code for one in ended] == [0, 0]
    assert hub.downloaded == [GGUF]
    assert any("another process downloads this model" in one.text for one in ended)


def test_a_stopped_download_can_be_taken_up(hub: HubServer, downloads: Downloads) -> None:
    hub.faults[GGUF].append(STALLED)
    running = downloads.start(f"{HUB}/{GGUF}")
    wait_for("half of it", lambda: downloads.partial_bytes() == half(hub, GGUF))
    running.process.terminate()
    ended = running.end()
    assert ended.code == os.EX_TEMPFAIL
    (line,) = ended.lines("stopped, what has come is kept")
    assert line["signal"] == "SIGTERM"
    assert downloads.partial_bytes() == half(hub, GGUF)


# Servers that make one wait.


@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_is_honoured_in_seconds(
    hub: HubServer, downloads: Downloads, status: int
) -> None:
    hub.faults[SHARD].append(throttled("2", status))
    began = time.monotonic()
    ended = downloads.run(HUB)
    assert ended.code == 0, ended.text
    assert time.monotonic() - began >= 2
    (line,) = ended.lines("the download waits")
    what = "throttled by localhost" if status == 429 else "answered 503"
    assert what in line["why"]
    assert ": again in " in line["why"]
    assert is_same(hub, downloads, SHARD)


def test_retry_after_is_honoured_as_a_date(hub: HubServer, downloads: Downloads) -> None:
    moment = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=4)
    hub.faults[API].append(throttled(format_datetime(moment, usegmt=True)))
    assert downloads.run(HUB).code == 0
    assert datetime.now(UTC) >= moment


def test_what_is_asked_to_wait_for_too_long_gives_up_at_once(
    hub: HubServer, downloads: Downloads
) -> None:
    hub.always[SHARD] = throttled("7200")
    ended = downloads.run(HUB)
    assert ended.code == os.EX_TEMPFAIL
    assert ended.last_words.startswith("DownloadFailed: throttled by localhost")
    assert "it asks to wait for 7200 s" in ended.last_words


def test_patience_ends(hub: HubServer, downloads: Downloads) -> None:
    hub.always[API] = Fault(500)
    ended = downloads.run(HUB, FASTGEN_DOWNLOAD_PATIENCE_SECONDS="3")
    assert ended.code == os.EX_TEMPFAIL
    assert ended.last_words.startswith("DownloadFailed: 127.0.0.1")
    assert "answered 500" in ended.last_words
    assert len(ended.lines("the download waits")) >= 2


def test_a_server_that_is_not_there(downloads: Downloads) -> None:
    ended = downloads.run("https://localhost:9/m.gguf", FASTGEN_DOWNLOAD_PATIENCE_SECONDS="1")
    assert ended.code == os.EX_TEMPFAIL
    assert ended.last_words.startswith("DownloadFailed: localhost:9 cannot be reached")


def test_a_stall_is_cut_off_and_gone_on_after(hub: HubServer, downloads: Downloads) -> None:
    hub.faults[SHARD].append(STALLED)
    ended = downloads.run(HUB, FASTGEN_DOWNLOAD_STALL_SECONDS="1")
    assert ended.code == 0, ended.text
    (line,) = ended.lines("the download waits")
    assert "was silent for 1 s" in line["why"]
    assert f"GET /content/{SHARD} bytes={half(hub, SHARD)}-" in hub.requests
    assert is_same(hub, downloads, SHARD)


@pytest.mark.parametrize("fault", [BROKEN, CUT], ids=["broken line", "half a file"])
@pytest.mark.parametrize("kind", ["hub", "https"])
def test_what_comes_short_is_noticed(
    hub: HubServer, downloads: Downloads, fault: Fault, kind: str
) -> None:
    name, source = (SHARD, HUB) if kind == "hub" else (GGUF, https(hub))
    hub.faults[name].append(fault)
    ended = downloads.run(source)
    assert ended.code == 0, ended.text
    assert len(ended.lines("the download waits")) == 1
    assert is_same(hub, downloads, name)


# Lies, locks and addresses.


def checked(hub: HubServer, sha256: str) -> str:
    return f"{https(hub)}#sha256={sha256}"


def test_a_checksum_of_the_source_is_checked(hub: HubServer, downloads: Downloads) -> None:
    source = checked(hub, "0" * 64)
    ended = downloads.run(source)
    assert ended.code == 1
    assert ended.last_words.startswith(f"ChecksumMismatch: {GGUF} came twice")
    assert hub.downloaded == [GGUF, GGUF]
    assert list(downloads.cache.rglob("*.gguf*")) == []
    actual = ended.last_words.partition("announced: ")[2].partition(",")[0]
    assert downloads.run(checked(hub, actual)).code == 0
    assert is_same(hub, downloads, GGUF)


@pytest.mark.parametrize("name", [SHARD, "config.json"], ids=["SHA-256", "Git hash"])
def test_a_wrong_file_is_fetched_once_more_and_then_refused(
    hub: HubServer, downloads: Downloads, name: str
) -> None:
    hub.faults[name].append(DAMAGED)
    assert downloads.run(HUB).code == 0
    assert hub.downloaded.count(name) == 2
    assert is_same(hub, downloads, name)
    hub.always[name] = DAMAGED
    other = Downloads(downloads.folder / "other", downloads.environment)
    ended = other.run(HUB)
    assert ended.code == 1
    assert ended.last_words.startswith(f"ChecksumMismatch: {name} came twice")
    assert not any(path.is_file() for path in other.cache.rglob(name))


def test_a_kill_does_not_hide_a_lie(hub: HubServer, downloads: Downloads) -> None:
    """The half that came before it was right, and the rest is not."""
    kill_at_half(hub, downloads, f"{HUB}/{GGUF}", GGUF)
    hub.faults[GGUF].append(DAMAGED)
    assert downloads.run(f"{HUB}/{GGUF}").code == 0
    assert is_same(hub, downloads, GGUF)


def is_denied(ended: Ended) -> bool:
    return (
        ended.code == 1
        and ended.last_words.startswith("AccessDenied: ")
        and "spec.model.tokenSecretRef" in ended.last_words
    )


def test_access_is_denied_in_plain_words(hub: HubServer, downloads: Downloads) -> None:
    hub.is_private = True
    for source in (HUB, https(hub)):
        assert is_denied(downloads.run(source))
        wrong = downloads.run(source, HF_TOKEN="hf_another")
        assert is_denied(wrong)
        assert "hf_another" not in wrong.text + wrong.last_words
        assert downloads.run(source, HF_TOKEN=f"{TOKEN}\n").code == 0


def test_a_gated_model_names_its_page(hub: HubServer, downloads: Downloads) -> None:
    hub.is_gated = True
    ended = downloads.run(HUB)
    assert is_denied(ended)
    assert f"accept its terms at {hub.url}/test/tiny" in ended.last_words


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (f"{HUB}@v9", "ModelNotFound: hf://test/tiny@v9 names a revision"),
        (f"{HUB}/none.gguf", "ModelNotFound: hf://test/tiny has no file none.gguf"),
        ("https://{host}/files/none.gguf", "ModelNotFound: https://{host}/files/none.gguf"),
        ("https://{host}/files/mamba.gguf", "ModelUnsupported: the GGUF architecture mamba"),
        ("https://{host}/files/page.gguf", "ModelInvalid: page.gguf is no GGUF file"),
        ("https://{host}/files/model.bin", "ModelUnsupported: https://{host}/files/model.bin"),
        ("https://me:word@{host}/m.gguf", "ConfigInvalid: https://{host}/m.gguf holds a user"),
        ("https://{host}/m.gguf#sha1=0", "ConfigInvalid: https://{host}/m.gguf: what follows #"),
        ("pvc://claim/path", "ModelUnsupported: pvc://claim/path cannot be downloaded"),
    ],
)
def test_what_no_retry_mends_is_told_at_once(
    hub: HubServer, downloads: Downloads, source: str, words: str
) -> None:
    host = hub.url.partition("://")[2]
    ended = downloads.run(source.format(host=host))
    assert ended.code == 1
    assert ended.last_words.startswith(words.format(host=host)), ended.last_words
    assert hub.downloaded == []


def test_an_authority_that_is_not_trusted(hub: HubServer, downloads: Downloads) -> None:
    trusted = "/etc/ssl/certs/ca-certificates.crt"
    ended = downloads.run(https(hub), SSL_CERT_FILE=trusted)
    assert ended.code == 1
    assert ended.last_words.startswith("ConfigInvalid: the certificate of 127.0.0.1")
    assert "SSL_CERT_FILE" in ended.last_words


# Secrets.


def test_no_secret_is_told_or_kept_or_sent_elsewhere(hub: HubServer, downloads: Downloads) -> None:
    hub.is_private = True
    hub.always[SHARD] = throttled(None)
    hub.always[head_of("mamba.gguf")] = BROKEN
    query = "?password=hush"
    told = ""
    for source in (
        HUB,
        https(hub) + query,
        https(hub, "mamba.gguf", "moved") + query,
        https(hub, "none.gguf") + query,
        "https://localhost:9/m.gguf" + query,
    ):
        ended = downloads.run(source, HF_TOKEN=TOKEN, FASTGEN_DOWNLOAD_PATIENCE_SECONDS="2")
        told += ended.text + ended.last_words
    assert "throttled by localhost" in told
    assert "the connection to localhost" in told
    kept = b"".join(path.read_bytes() for path in downloads.cache.rglob("*") if path.is_file())
    for secret in (TOKEN, SIGNATURE, "hush"):
        assert secret not in told
        assert secret.encode() not in kept
    assert hub.tokens_on_content_network == []
    assert any(line.startswith("GET /content/") for line in hub.requests)


def test_a_redirect_away_from_tls_is_not_followed(
    hub: HubServer, downloads: Downloads, tmp_path: Path
) -> None:
    before = hub.content_url
    with serving_hub(hub.folder) as plain:
        hub.content_url = plain.url
        try:
            ended = downloads.run(https(hub, folder="moved"), HF_TOKEN=TOKEN)
        finally:
            hub.content_url = before
        assert plain.requests == []
    assert ended.code == 1
    assert ended.last_words.startswith("ModelNotFound: 127.0.0.1 redirects to 127.0.0.1")
    assert "without TLS" in ended.last_words


# What is told of it.


def test_resolving_fetches_no_weights(hub: HubServer, downloads: Downloads) -> None:
    ended = downloads.run(HUB, "--revision=v1", "--resolve-only")
    assert ended.code == 0, ended.text
    (line,) = ended.lines("resolved")
    whole = sum(path.stat().st_size for path in hub.folder.iterdir() if path.suffix != ".gguf")
    assert (line["revision"], line["bytes"]) == (COMMIT, whole)
    assert line["path"] == str(downloads.cache / SNAPSHOT)
    assert set(hub.downloaded) == {"config.json", "model.safetensors.index.json"}
    hub.reset()
    ended = downloads.run(https(hub), "--resolve-only")
    (line,) = ended.lines("resolved")
    assert line["bytes"] == (hub.folder / GGUF).stat().st_size
    assert hub.downloaded == []
    assert downloads.run(https(hub)).lines("delivered")[0]["path"] == line["path"]


def test_a_cache_without_room_is_told_before_anything_comes(
    hub: HubServer, downloads: Downloads
) -> None:
    hub.listed_bytes[SHARD] = 10**15
    ended = downloads.run(HUB)
    assert ended.code == os.EX_TEMPFAIL
    assert ended.last_words.startswith("CacheFull: the download needs 1000000.0")
    assert "GB left" in ended.last_words
    assert SHARD not in hub.downloaded
