"""Decides what `fastgen serve` starts: programs, ports and threads."""

import shlex
import shutil
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random
from typing import Final

from fastgen_cli.errors import UserError
from fastgen_cli.source import Source

LOOPBACK: Final = "127.0.0.1"
PORTS: Final = range(20_000, 30_000)
"""Below those that Linux gives to outgoing connections (from 32768 on): whoever connects between
the choice of a port and its use cannot take it by chance."""
MEMORY_PERCENT: Final = 90


def own_command(invoked: str) -> str:
    """How a person calls `fastgen` again: by the path of this call unless the PATH has the same.

    invoked: argv[0], which for a program found on the PATH is its whole path.
    """
    found = shutil.which("fastgen")
    same = found is not None and Path(invoked).absolute() == Path(found).absolute()
    return "fastgen" if same or Path(invoked).name != "fastgen" else shlex.quote(invoked)


class PortTakenError(UserError):
    """Something else listens there; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a person asked for."""

    source: Source
    replicas: int
    host: str
    port: int
    grpc_port: int
    """gRPC port of a single replica; several share `port` for HTTP and gRPC."""
    engine: tuple[str, ...] = ()
    """Arguments handed to each replica."""
    drain_seconds: int = 30


@dataclass(frozen=True, slots=True)
class Replica:
    """Where one `fastgen-runtime` listens."""

    name: str
    host: str
    http_port: int
    grpc_port: int

    @property
    def http_url(self) -> str:
        """Its HTTP address, reached from this machine."""
        return f"http://{reachable(self.host)}:{self.http_port}"


@dataclass(frozen=True, slots=True)
class BalancerPorts:
    """Where the balancer's parts listen; all but the listener on loopback."""

    listener: int
    picker: int
    picker_http: int
    admin: int


def reachable(host: str) -> str:
    """The address under which this machine reaches a host that a server binds to."""
    if host in ("0.0.0.0", "::"):
        return LOOPBACK
    return f"[{host}]" if ":" in host else host


def free_ports(count: int) -> list[int]:
    """Loopback ports that are free now, all different, and that no connection will take."""
    order = Random().sample(PORTS, len(PORTS))
    return list(islice((port for port in order if _is_free(port)), count))


def _is_free(port: int) -> bool:
    with socket.socket() as one:
        try:
            one.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def check_port(host: str, port: int, option: str) -> None:
    """Raise PortTakenError when something listens there already."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind((host, port))
        except OSError as error:
            raise PortTakenError(
                f"{host}:{port} cannot be used ({error.strerror}): choose another with {option}."
            ) from error


def make_replicas(options: Options, ports: Sequence[int]) -> list[Replica]:
    """One replica at the asked ports, or several on the given loopback ports, two each."""
    if options.replicas == 1:
        return [Replica("replica-0", options.host, options.port, options.grpc_port)]
    return [
        Replica(f"replica-{index}", LOOPBACK, ports[2 * index], ports[2 * index + 1])
        for index in range(options.replicas)
    ]


def runtime_command(program: str, options: Options, replica: Replica) -> list[str]:
    """The command line of a replica; several share the memory that one would take."""
    memory = max(1, MEMORY_PERCENT // options.replicas)
    return [
        *(program, "--model", str(options.source.path), "--served-name", options.source.name),
        *("--host", replica.host, "--http-port", str(replica.http_port)),
        *("--grpc-port", str(replica.grpc_port), "--drain-seconds", str(options.drain_seconds)),
        *("--memory-percent", str(memory)),
        *options.engine,
    ]


def replica_environment(replica: Replica, replicas: int, cpus: int, threads: str) -> dict[str, str]:
    """Divides the CPUs among the replicas, unless the person has set OMP_NUM_THREADS (`threads`).

    POD_NAME is the name that the replica tells clients in `x-fastgen-replica`.
    """
    shared = threads or str(max(1, cpus // replicas))
    return {"OMP_NUM_THREADS": shared, "POD_NAME": replica.name, "PYTHONUNBUFFERED": "1"}


def balancer_commands(
    program: str, directory: Path, host: str, ports: BalancerPorts, replicas: Sequence[Replica]
) -> dict[str, list[str]]:
    """The balancer's three commands; `bootstrap` ends by itself before the others start."""
    where = [program], ["--directory", str(directory)]
    endpoints = [f"{one.host}:{one.http_port}:{one.grpc_port}" for one in replicas]
    static = [word for endpoint in endpoints for word in ("--static", endpoint)]
    picker = ["--picker-port", str(ports.picker)]
    return {
        "bootstrap": [
            *(*where[0], "bootstrap", *where[1], "--host", host, "--port", str(ports.listener)),
            *(*picker, "--admin-port", str(ports.admin)),
        ],
        "picker": [
            *(*where[0], "picker", *where[1], *picker),
            *("--http-port", str(ports.picker_http), *static),
        ],
        "envoy": [*where[0], "envoy", *where[1]],
    }
