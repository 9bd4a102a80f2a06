"""A machine of its own for a process, whose link can be cut: packets vanish, nothing is refused."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

from fastgen_devcluster.packages import ensure_network_packages


@dataclass(frozen=True, slots=True)
class Machine:
    """A network namespace that is linked to ours."""

    name: str
    host: str
    """Its address, as seen from ours."""

    @property
    def within(self) -> tuple[str, ...]:
        """Runs a command in it."""
        return ("ip", "netns", "exec", self.name)

    def cut(self) -> None:
        """From now on what goes in or out is dropped."""
        for chain in ("INPUT", "OUTPUT"):
            _run(*self.within, "iptables", "-w", "-A", chain, "-j", "DROP")

    def mend(self) -> None:
        for chain in ("INPUT", "OUTPUT"):
            _run(*self.within, "iptables", "-w", "-F", chain)


@contextlib.contextmanager
def machine() -> Iterator[Machine]:
    """Needs root; nothing of it is left when the block ends."""
    ensure_network_packages()
    pid = os.getpid()
    name, ours, theirs = f"fastgen-cut-{pid}", f"fgcut{pid}a", f"fgcut{pid}b"
    # Of the block for benchmarks (RFC 2544), which no network of a test machine has.
    network = f"198.18.{pid % 256}"
    _run("ip", "netns", "add", name)
    try:
        _run("ip", "link", "add", ours, "type", "veth", "peer", "name", theirs, "netns", name)
        _run("ip", "address", "add", f"{network}.1/30", "dev", ours)
        _run("ip", "link", "set", ours, "up")
        _run("ip", "-n", name, "address", "add", f"{network}.2/30", "dev", theirs)
        _run("ip", "-n", name, "link", "set", theirs, "up")
        _run("ip", "-n", name, "link", "set", "lo", "up")
        yield Machine(name, f"{network}.2")
    finally:
        subprocess.run(("ip", "link", "delete", ours), check=False, capture_output=True)
        _run("ip", "netns", "delete", name)


def _run(*command: str) -> None:
    subprocess.run(command, check=True)
