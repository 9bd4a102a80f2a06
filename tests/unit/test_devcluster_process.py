"""Only processes that were started here are ever ended."""

import dataclasses
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastgen_devcluster.process import (
    Ledger,
    boot_id,
    end,
    identify,
    in_network,
    is_alive,
    parse_stat,
    uninterrupted,
)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    ledger = Ledger(tmp_path / "run")
    yield ledger
    ledger.stop(ledger.names(), grace_seconds=0)


def test_a_program_name_with_spaces_and_brackets_hides_nothing() -> None:
    numbers = " ".join(str(number) for number in range(4, 53))
    assert parse_stat(f"7 (a) b) S {numbers}") == ("S", 22)


def test_this_process_is_identified() -> None:
    identity = identify(os.getpid())
    assert identity is not None
    assert is_alive(identity)
    assert identity.boot == boot_id()


def test_a_reused_number_and_an_earlier_boot_are_somebody_else() -> None:
    identity = identify(os.getpid())
    assert identity is not None
    assert not is_alive(dataclasses.replace(identity, start_ticks=identity.start_ticks - 1))
    assert not is_alive(dataclasses.replace(identity, boot="another"))


def test_a_zombie_is_dead() -> None:
    with subprocess.Popen(["true"]) as child:
        deadline = time.monotonic() + 5
        while identify(child.pid) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert identify(child.pid) is None


def test_a_process_is_started_once_and_stopped(ledger: Ledger, tmp_path: Path) -> None:
    ledger.start("sleeper", ["sleep", "60"], tmp_path / "log")
    first = ledger.find("sleeper")
    assert first is not None
    ledger.start("sleeper", ["sleep", "60"], tmp_path / "log")
    assert ledger.find("sleeper") == first
    ledger.stop(["sleeper"], grace_seconds=5)
    assert not is_alive(first)
    assert ledger.names() == []


def test_a_process_that_ignores_the_request_is_ended_after_the_grace(
    ledger: Ledger, tmp_path: Path
) -> None:
    script = "trap '' TERM; echo ready; while :; do sleep 0.1; done"
    ledger.start("stubborn", ["sh", "-c", script], tmp_path / "log")
    identity = ledger.find("stubborn")
    assert identity is not None
    deadline = time.monotonic() + 5
    while "ready" not in (tmp_path / "log").read_text() and time.monotonic() < deadline:
        time.sleep(0.01)
    end([identity], grace_seconds=0.2)
    assert not is_alive(identity)


def test_a_stale_record_ends_nobody(ledger: Ledger) -> None:
    ledger.directory.mkdir()
    record = ledger.directory / "kubelet.json"
    record.write_text(f'{{"pid": {os.getpid()}, "start_ticks": 1, "boot": "another"}}')
    assert ledger.find("kubelet") is None
    ledger.stop(ledger.names(), grace_seconds=0)
    assert not record.exists()


def test_a_record_cut_short_is_no_record(ledger: Ledger) -> None:
    ledger.directory.mkdir()
    (ledger.directory / "etcd.json").write_text('{"pid": 1')
    assert ledger.find("etcd") is None


def test_an_interruption_waits_for_the_record(ledger: Ledger, tmp_path: Path) -> None:
    def start_interrupted() -> None:
        with uninterrupted():
            signal.raise_signal(signal.SIGINT)
            ledger.start("sleeper", ["sleep", "60"], tmp_path / "log")

    # An event loop of another test may have left its own handler, which raises nothing.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            start_interrupted()
        assert ledger.find("sleeper") is not None
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_started_process_answers_to_an_interruption(ledger: Ledger, tmp_path: Path) -> None:
    ledger.start("sleeper", ["sleep", "60"], tmp_path / "log")
    identity = ledger.find("sleeper")
    assert identity is not None
    os.kill(identity.pid, signal.SIGINT)
    deadline = time.monotonic() + 5
    while is_alive(identity) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_alive(identity)


def test_processes_are_found_by_their_network() -> None:
    assert identify(os.getpid()) in in_network(Path("/proc/self/ns/net"))
    assert in_network(Path("/nowhere")) == []
