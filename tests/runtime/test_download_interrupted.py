"""A download that is cut short is gone on with, and what makes one wait is borne."""

import os
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from download_process import Downloads
from hub_server import (
    API,
    BROKEN,
    CUT,
    STALLED,
    Fault,
    HubServer,
    throttled,
)
from served_models import GGUF, HUB, SHARD, half, https, is_same, kill_at_half, wait_for

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
