"""The processes of `load.py`: fake replicas, a balancer, clients, and what CPU time they take."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

from load_rival import Config, decide_alone

from fastgen_cli.simulate.profile import Profile

Told: TypeAlias = dict[str, Any]
"""What the client tells: `report` of go/load/record.go."""

BALANCER: Final = (sys.executable, "-m", "fastgen_balancer.main")
START_SECONDS: Final = 60.0


def cpu_seconds(pid: int) -> float:
    """User and system time of a process' threads that live, to the nanosecond."""
    spent = 0
    for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):
            spent += int(path.read_text().split()[0])
    return spent / 1e9


def free_ports(number: int) -> list[int]:
    """Ports of the loopback that nobody listens on."""
    with contextlib.ExitStack() as stack:
        sockets = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(number)
        ]
        return [each.getsockname()[1] for each in sockets]


def stop(process: "subprocess.Popen[Any]") -> None:
    """Ends a process now."""
    process.kill()
    process.wait()


@dataclass(frozen=True, slots=True)
class Replicas:
    """A process of fake replicas; addresses: HOST:HTTP_PORT:GRPC_PORT of each."""

    pid: int
    addresses: tuple[str, ...]

    def targets(self, protocol: str) -> list[str]:
        """HOST:PORT of each, for a client that needs no balancer."""
        place = {"http": 1, "grpc": 2}[protocol]
        parts = (address.split(":") for address in self.addresses)
        return [f"{each[0]}:{each[place]}" for each in parts]


@contextlib.contextmanager
def replicas(program: Path, number: int, flags: Sequence[str]) -> Iterator[Replicas]:
    """Serves until the block ends."""
    command = [str(program), "replicas", f"-replicas={number}", *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield Replicas(process.pid, tuple(json.loads(process.stdout.readline())))
    finally:
        stop(process)


def flags_of(profile: Profile, max_concurrent: int, budget: int) -> list[str]:
    """A profile's fitted step times as the program's flags."""
    cost = profile.cost
    return [
        f"-base-seconds={cost.base}",
        f"-seconds-per-token={cost.per_token}",
        f"-seconds-per-attended={cost.per_attended}",
        f"-seconds-per-request={cost.per_request}",
        f"-budget={budget}",
        f"-max-concurrent={max_concurrent}",
        f"-block-tokens={profile.block_size}",
        f"-blocks={profile.num_blocks}",
    ]


@dataclass(frozen=True, slots=True)
class Spent:
    """CPU seconds since some moment."""

    picker: float
    envoy: float


@dataclass(slots=True)
class Balancer:
    """One pod's processes. Without a picker Envoy decides alone."""

    port: int
    http_port: int
    envoy: "subprocess.Popen[Any]"
    picker: "subprocess.Popen[Any] | None" = None
    _began: Spent = field(default_factory=lambda: Spent(0.0, 0.0))

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.port}"

    def spent(self) -> Spent:
        """CPU seconds since the last call."""
        picker = cpu_seconds(self.picker.pid) if self.picker else 0.0
        now, before = Spent(picker, cpu_seconds(self.envoy.pid)), self._began
        self._began = now
        return Spent(now.picker - before.picker, now.envoy - before.envoy)

    def metric(self, name: str) -> float:
        """Sum of the picker's series of this name."""
        text = urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}/metrics").read().decode()
        lines = (line for line in text.splitlines() if line.startswith((f"{name}{{", f"{name} ")))
        return sum(float(line.rpartition(" ")[2]) for line in lines)


@contextlib.contextmanager
def balancer(
    directory: Path,
    addresses: Sequence[str],
    own_policy: Config | None = None,
) -> Iterator[Balancer]:
    """Serves these replicas until the block ends; own_policy: Envoy's, in place of the picker."""
    directory.mkdir(parents=True)
    port, admin, http, picker = free_ports(4)
    place = ("--directory", str(directory))
    ports = ("--port", str(port), "--admin-port", str(admin), "--picker-port", str(picker))
    bootstrap = (*BALANCER, "bootstrap", *place, "--host", "127.0.0.1", *ports)
    subprocess.run(bootstrap, check=True)
    static = [argument for address in addresses for argument in ("--static", address)]
    serve = (*BALANCER, "picker", *place, *static, "--picker-port", str(picker))
    with contextlib.ExitStack() as stack:

        def start(name: str, *command: str) -> "subprocess.Popen[Any]":
            log = stack.enter_context((directory / f"{name}.log").open("wb"))
            process = subprocess.Popen(command, stdout=log, stderr=log)
            stack.callback(stop, process)
            return process

        chooser = None
        if own_policy is None:
            chooser = start("picker", *serve, "--http-port", str(http), "--log-level", "error")
        else:
            decide_alone(directory, addresses, own_policy)
        envoy = start("envoy", *BALANCER, "envoy", *place)
        if chooser is not None:
            _wait(f"http://127.0.0.1:{http}/readyz", directory)
        _wait(f"http://127.0.0.1:{port}/healthz/envoy", directory)
        running = Balancer(port, http, envoy, chooser)
        running.spent()
        yield running


def _wait(url: str, directory: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            urllib.request.urlopen(url, timeout=1).close()
            return
        time.sleep(0.05)
    logs = "\n".join(path.read_text()[-2000:] for path in directory.glob("*.log"))
    raise SystemExit(f"the balancer did not start:\n{logs}")


def client(program: Path, targets: Sequence[str], protocol: str, **flags: float | str) -> Told:
    """Runs the client to its end."""
    with running_client(program, targets, protocol, **flags) as process:
        return told_by(process)


@contextlib.contextmanager
def running_client(
    program: Path, targets: Sequence[str], protocol: str, **flags: float | str
) -> Iterator["subprocess.Popen[str]"]:
    """A client at work; it is ended with the block."""
    given = [f"-{name.replace('_', '-')}={value}" for name, value in flags.items()]
    command = [str(program), "client", f"-targets={','.join(targets)}", f"-protocol={protocol}"]
    process = subprocess.Popen([*command, *given], stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        stop(process)


def told_by(process: "subprocess.Popen[str]") -> Told:
    """What a client prints at its end."""
    out, _ = process.communicate()
    if process.returncode != 0:
        raise SystemExit(f"the client ended with {process.returncode}")
    told: Told = json.loads(out)
    return told


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))
