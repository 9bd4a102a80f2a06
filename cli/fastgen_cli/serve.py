"""Runs replicas, and in front of several of them the balancer, until told to stop."""

import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final

import httpx2
from rich.console import Console
from rich.markup import escape

from fastgen_cli import plan
from fastgen_cli.children import POLL_SECONDS, Child, Children, find_program
from fastgen_cli.errors import UserError, missing_module, needs
from fastgen_cli.plan import BalancerPorts, Options, Replica
from fastgen_cli.url import DEFAULT

BOOTSTRAP_SECONDS: Final = 60
BALANCER_SECONDS: Final = 30


class StopRequestedError(Exception):
    """The person, or a SIGTERM, ended it before it served."""


class NotReadyError(UserError):
    """A part did not come up in time."""


@dataclass(slots=True)
class Stop:
    """Counts the signals to end: the first drains, the second hurries."""

    signals: int = 0

    def note(self, _number: int, _frame: FrameType | None) -> None:
        """The signal handler."""
        self.signals += 1

    def hurried(self) -> bool:
        """Whether it was said twice."""
        return self.signals > 1


@contextmanager
def listen_for_stop() -> Iterator[Stop]:
    """A Stop that the signals reach while the context lasts; a closed terminal is one."""
    stop = Stop()
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, stop.note) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def serve(options: Options, console: Console) -> None:
    """Serve until SIGINT or SIGTERM, then drain.

    Raises UserError, with everything ended.
    """
    plan.check_port(options.host, options.port, "--port")
    if options.replicas == 1:
        plan.check_port(options.host, options.grpc_port, "--grpc-port")
    with (
        tempfile.TemporaryDirectory(prefix="fastgen-serve-") as name,
        listen_for_stop() as stop,
        Children(Path(name)) as children,
    ):
        try:
            replicas = _start_replicas(options, children, stop, console)
            if options.replicas > 1:
                _start_balancer(options, replicas, children, stop, console)
            _announce(options, console)
            while not stop.signals:
                children.check()
                time.sleep(POLL_SECONDS)
        except StopRequestedError:
            pass
        _drain(options, children, stop, console)


def _start_replicas(
    options: Options, children: Children, stop: Stop, console: Console
) -> list[Replica]:
    program = find_program("fastgen-runtime")
    ports = plan.free_ports(2 * options.replicas) if options.replicas > 1 else []
    replicas = plan.make_replicas(options, ports)
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    threads = os.environ.get("OMP_NUM_THREADS", "")
    started = time.monotonic()
    for replica in replicas:
        environment = plan.replica_environment(replica, len(replicas), cpus or 1, threads)
        children.start(replica.name, plan.runtime_command(program, options, replica), environment)
    what = f"Loading {options.source.name}" + (
        f" into {len(replicas)} replicas" if len(replicas) > 1 else ""
    )
    console.print(f"{what} from {options.source.path} …", soft_wrap=True, highlight=False)
    with console.status("Loading"):
        for replica in replicas:
            # Loading takes as long as the model is large: no deadline, a replica that fails exits.
            _wait(f"{replica.http_url}/health", children, stop, what)
            console.print(f"  {replica.name} is ready after {time.monotonic() - started:.1f} s")
    return replicas


def _start_balancer(
    options: Options, replicas: list[Replica], children: Children, stop: Stop, console: Console
) -> None:
    program = find_program("fastgen-balancer")
    directory = children.directory / "balancer"
    directory.mkdir()
    ports = BalancerPorts(options.port, *plan.free_ports(3))
    commands = plan.balancer_commands(program, directory, options.host, ports, replicas)
    started = time.monotonic()
    done = subprocess.run(
        commands["bootstrap"],
        capture_output=True,
        text=True,
        timeout=BOOTSTRAP_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        missing = missing_module(done.stderr)
        if missing is not None:
            raise NotReadyError(needs("fastgen serve", missing))
        raise NotReadyError(f"The balancer's settings could not be written:\n{done.stderr[-2000:]}")
    for name in ("picker", "envoy"):
        children.start(name, commands[name], {"PYTHONUNBUFFERED": "1"})
    deadline = time.monotonic() + BALANCER_SECONDS
    for url in (
        f"http://{plan.LOOPBACK}:{ports.picker_http}/readyz",
        f"http://{plan.reachable(options.host)}:{options.port}/v1/models",
    ):
        _wait(url, children, stop, "The balancer", deadline)
    console.print(f"  balancer is ready after {time.monotonic() - started:.1f} s")


def _answers(url: str) -> bool:
    try:
        return httpx2.get(url, timeout=2, trust_env=False).status_code == 200
    except httpx2.HTTPError:
        return False


def _wait(
    url: str,
    children: Children,
    stop: Stop,
    what: str,
    deadline: float = float("inf"),
) -> None:
    """Poll until the URL answers 200; raises UserError or StopRequestedError."""
    while not _answers(url):
        children.check()
        if stop.signals:
            raise StopRequestedError
        if time.monotonic() > deadline:
            ends = "\n".join(f"{one.name}: {one.last_lines(5)}" for one in children.running)
            raise NotReadyError(
                f"{what} did not come up in {BALANCER_SECONDS} s. Last log lines:\n{ends}"
            )
        time.sleep(2 * POLL_SECONDS)


def _announce(options: Options, console: Console) -> None:
    host = plan.reachable(options.host)
    url = f"http://{host}:{options.port}"
    grpc = f"{host}:{options.grpc_port if options.replicas == 1 else options.port}"
    question = '{"role": "user", "content": "What is the capital of France?"}'
    body = f'{{"model": "{options.source.name}", "messages": [{question}], "stream": true}}'
    chat = f"{plan.own_command(sys.argv[0])} chat"
    if url != DEFAULT:
        chat += f" --url {shlex.quote(url)}"
    curl = f"curl -N {shlex.quote(f'{url}/v1/chat/completions')}"
    # The brackets of an IPv6 address are markup, too.
    console.print(
        f"\n[bold]{options.source.name}[/bold] is served at [bold]{escape(f'{url}/v1')}[/bold]"
        f" (gRPC at {escape(grpc)})\n\n"
        f"  {escape(chat)}\n"
        f"  {escape(curl)} -H 'content-type: application/json' -d '{body}'\n\n"
        "Ctrl-C ends it.",
        soft_wrap=True,
        highlight=False,
    )


def _drain(options: Options, children: Children, stop: Stop, console: Console) -> None:
    """Replicas first: their running streams still need the balancer."""
    console.print("Stopping: running answers may end first; Ctrl-C again stops at once.")
    front = [child for child in children.running if child.name in ("picker", "envoy")]
    replicas: list[Child] = [child for child in children.running if child not in front]
    children.end(replicas, options.drain_seconds + 5, stop.hurried)
    children.end(front, 5, stop.hurried)
    console.print("Stopped.")
