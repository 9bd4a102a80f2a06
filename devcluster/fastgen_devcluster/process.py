"""Starts the cluster's processes, remembers them, and ends only those."""

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

# A daemon sees nothing of the caller's environment: a proxy variable would redirect its traffic.
DAEMON_ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
}


@dataclass(frozen=True, slots=True)
class Identity:
    """What tells a process from another that got the same number later."""

    pid: int
    start_ticks: int
    boot: str


def boot_id() -> str:
    """The kernel's name for the time since it started."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def parse_stat(stat: str) -> tuple[str, int]:
    """The state letter and the start time of /proc/PID/stat, whatever the program's name holds."""
    fields = stat.rpartition(")")[2].split()
    return fields[0], int(fields[19])


def identify(pid: int) -> Identity | None:
    """The identity of a living process, or nothing when it is gone or a zombie."""
    try:
        state, start_ticks = parse_stat(Path(f"/proc/{pid}/stat").read_text())
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if state in "ZX" else Identity(pid, start_ticks, boot_id())


def is_alive(identity: Identity) -> bool:
    """Whether this very process still runs."""
    return identify(identity.pid) == identity


def in_network(netns: Path) -> list[Identity]:
    """The processes in the network namespace that a file keeps alive, on record or not."""
    if not netns.exists():
        return []
    wanted = netns.stat()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            there = (entry / "ns" / "net").stat()
        except OSError:
            continue
        if (there.st_dev, there.st_ino) == (wanted.st_dev, wanted.st_ino):
            identity = identify(int(entry.name))
            found += [identity] if identity else []
    return found


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold an interruption back until the end, so that no process goes without its record."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []
    # Handlers and not a mask: the process that is started would inherit a mask.
    before = {
        number: signal.signal(number, lambda number, _: arrived.append(number))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for interruption in arrived:
            signal.raise_signal(interruption)


@dataclass(frozen=True, slots=True)
class Ledger:
    """The processes that were started, one file each."""

    directory: Path

    def names(self) -> list[str]:
        """Every process on record, alive or not."""
        return sorted(path.stem for path in self.directory.glob("*.json"))

    def find(self, name: str) -> Identity | None:
        """The process of this name when it is alive."""
        try:
            identity = Identity(**json.loads((self.directory / f"{name}.json").read_text()))
        except (FileNotFoundError, ValueError, TypeError):
            return None
        return identity if is_alive(identity) else None

    def start(self, name: str, argv: Sequence[str | Path], log: Path) -> None:
        """Start a process unless it is alive, and put it on record."""
        if self.find(name):
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output, uninterrupted():
            child = subprocess.Popen(
                [str(word) for word in argv],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=DAEMON_ENVIRONMENT,
                cwd="/",
                start_new_session=True,
            )
            identity = identify(child.pid)
            if identity:
                (self.directory / f"{name}.json").write_text(json.dumps(asdict(identity)))

    def stop(self, names: Iterable[str], grace_seconds: float) -> None:
        """Ask the processes to end, insist after the grace, and strike them off the record."""
        chosen = list(names)
        end([found for name in chosen if (found := self.find(name))], grace_seconds)
        for name in chosen:
            (self.directory / f"{name}.json").unlink(missing_ok=True)


def end(identities: Sequence[Identity], grace_seconds: float) -> None:
    """End processes: SIGTERM first when there is a grace, SIGKILL after it."""
    if grace_seconds > 0:
        _signal(identities, signal.SIGTERM)
        _await_end(identities, grace_seconds)
    _signal(identities, signal.SIGKILL)
    _await_end(identities, 5)


def _signal(identities: Sequence[Identity], number: signal.Signals) -> None:
    for identity in identities:
        if is_alive(identity):
            try:
                os.kill(identity.pid, number)
            except ProcessLookupError:
                continue


def _await_end(identities: Sequence[Identity], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and any(is_alive(identity) for identity in identities):
        time.sleep(0.05)
