"""What the ConfigMap of a deployment is told of a download, and when."""

import io
import logging
import socket
import ssl
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from certificates import make_certificate

from fastgen_api.delivery import DeliveryState
from fastgen_api.names import StartupFailure
from fastgen_runtime.sources.config_map import ConfigMap, UnreportedError, api_server
from fastgen_runtime.sources.delivery_fields import fields_of, is_worth_telling
from fastgen_runtime.sources.delivery_report import DeliveryReport
from fastgen_runtime.sources.progress import Progress, Told, line_of, logged, shown

ROOT = Path("/models")
TOLD = Told("c0ffee", ROOT / "huggingface" / "hub" / "m", 1000, 250)
FIELDS = {
    "state": "Downloading",
    "revision": "c0ffee",
    "path": "huggingface/hub/m",
    "sizeBytes": "1000",
    "downloadedBytes": "250",
    "reason": None,
    "message": None,
}


def test_a_download_that_moves() -> None:
    assert fields_of(TOLD, DeliveryState.DOWNLOADING, ROOT) == FIELDS


def test_nothing_is_known_in_the_beginning() -> None:
    fields = fields_of(Told(), DeliveryState.DOWNLOADING, ROOT)
    assert fields == dict.fromkeys(FIELDS) | {"state": "Downloading", "downloadedBytes": "0"}


def test_a_download_that_waits_says_why() -> None:
    told = replace(TOLD, wait="throttled by hub: again in 40 s")
    assert fields_of(told, DeliveryState.DOWNLOADING, ROOT) == FIELDS | {
        "reason": "DownloadFailed",
        "message": "throttled by hub: again in 40 s",
    }
    told = replace(TOLD, busy="checking m.gguf")
    fields = fields_of(told, DeliveryState.DOWNLOADING, ROOT)
    assert (fields["reason"], fields["message"]) == (None, "checking m.gguf")


def test_ends() -> None:
    told = replace(TOLD, wait="of before")
    assert fields_of(told, DeliveryState.DELIVERED, ROOT) == FIELDS | {"state": "Delivered"}
    failure = (StartupFailure.CACHE_FULL, "no room")
    assert fields_of(told, DeliveryState.FAILED, ROOT, failure) == FIELDS | {
        "state": "Failed",
        "reason": "CacheFull",
        "message": "no room",
    }


def test_resolving_counts_no_bytes() -> None:
    told = replace(TOLD, brings_all=False)
    assert fields_of(told, DeliveryState.DELIVERED, ROOT)["downloadedBytes"] is None


@pytest.mark.parametrize(
    ("changes", "is_worth"),
    [
        ({}, False),
        ({"downloaded_bytes": 259}, False),
        ({"downloaded_bytes": 260}, True),
        ({"downloaded_bytes": 0}, True),
        ({"wait": "x"}, True),
        ({"size_bytes": 1001}, True),
    ],
)
def test_a_percent_is_worth_telling(changes: dict[str, object], is_worth: bool) -> None:
    fields = fields_of(replace(TOLD, **changes), DeliveryState.DOWNLOADING, ROOT)
    assert is_worth_telling(FIELDS, fields) is is_worth


def test_the_first_report_is_worth_telling() -> None:
    assert is_worth_telling({}, fields_of(Told(), DeliveryState.DOWNLOADING, ROOT))


def test_where_the_api_server_is() -> None:
    environment = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "6443"}
    assert api_server(environment) == "https://10.0.0.1:6443"
    environment["KUBERNETES_SERVICE_HOST"] = "fd00::1"
    assert api_server(environment) == "https://[fd00::1]:6443"


@pytest.fixture
def account(tmp_path: Path) -> Path:
    """A service account's folder, as the kubelet mounts it."""
    made = make_certificate(tmp_path)
    made.authority.rename(tmp_path / "ca.crt")
    (tmp_path / "token").write_text("of the pod")
    (tmp_path / "namespace").write_text("team")
    return tmp_path


def test_an_api_server_that_is_away_holds_up_nothing(
    account: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config_map = ConfigMap("m", "k", server="https://127.0.0.1:9", account=account)
    with pytest.raises(UnreportedError, match="ConnectError"):
        config_map.merge(FIELDS)
    report = DeliveryReport(config_map, Progress(), ROOT)
    with caplog.at_level(logging.INFO), report.running():
        while "progress cannot be reported" not in caplog.messages:
            pass
    assert not report.end(DeliveryState.DELIVERED, seconds=0)
    assert report.pinned(seconds=0) is None
    assert "of the pod" not in caplog.text


def test_an_api_server_that_another_authority_vouches_for(account: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = make_certificate(tmp_path / "other")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(other.certificate, other.key)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with pytest.raises(ssl.SSLError), connection:
                context.wrap_socket(connection, server_side=True).recv(1)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        server = f"https://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(UnreportedError, match="CERTIFICATE_VERIFY_FAILED"):
            ConfigMap("m", "k", server=server, account=account).merge(FIELDS)
        thread.join(5)


def test_a_log_line_from_time_to_time(caplog: pytest.LogCaptureFixture) -> None:
    progress = Progress()
    with caplog.at_level(logging.INFO), logged(progress, seconds=0.01):
        progress.resolved(None, ROOT, 50)
        progress.has("a", 20)
        while not any(getattr(record, "bytes", 0) == 20 for record in caplog.records):
            pass
        progress.waits("throttled")
        while not any(getattr(record, "wait", "") == "throttled" for record in caplog.records):
            pass
    assert vars(caplog.records[-1])["total_bytes"] == 50


@pytest.mark.parametrize(
    ("told", "line"),
    [
        (Told(), ""),
        (Told(wait="throttled: again in 4 s"), "hf://a/b: throttled: again in 4 s"),
        (Told(size_bytes=4 * 10**9, downloaded_bytes=10**9), "hf://a/b: 1.00 of 4.00 GB, 25 %"),
        (Told(size_bytes=4, downloaded_bytes=4, busy="checking m"), "hf://a/b: checking m"),
    ],
)
def test_what_a_person_reads(told: Told, line: str) -> None:
    assert line_of(told, "hf://a/b") == line


class Terminal(io.StringIO):
    """A terminal that keeps what it is told, and tells when something has come."""

    def __init__(self) -> None:
        super().__init__()
        self.has_text = threading.Event()

    def isatty(self) -> bool:
        return True

    def flush(self) -> None:
        self.has_text.set()


def test_a_line_at_a_terminal_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Programs that other tests ran in this process may have left a log with a closed stream.
    monkeypatch.setattr(logging, "raiseExceptions", False)
    progress = Progress()
    progress.waits("throttled")
    with shown(progress, "m"):
        pass
    assert capsys.readouterr().err == ""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with shown(progress, "m"):
        assert terminal.has_text.wait(30)
        assert "m: throttled" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[K"), "and it is gone again"


def test_progress_is_what_never_came_before() -> None:
    progress = Progress()
    assert progress.has("a", 10)
    progress.waits("x")
    assert not progress.has("a", 5)
    assert progress.told.wait == "x"
    assert not progress.has("a", 10)
    assert progress.has("a", 11)
    assert progress.told == Told(downloaded_bytes=11)
    progress.restarts("a")
    assert progress.has("a", 1)
