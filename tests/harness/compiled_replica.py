"""The benchmarks' compiled fake replicas, each a process to be killed, hung or drained."""

import asyncio
import contextlib
import json
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from load_program import ensure_program

from fastgen_cli.plan import free_ports


@dataclass
class CompiledReplica:
    """One replica at an address that stays; it may be up, hung, or gone."""

    program: Path
    http_port: int
    grpc_port: int
    flags: tuple[str, ...]
    process: asyncio.subprocess.Process | None = None
    is_hung: bool = False

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.http_port}:{self.grpc_port}"

    @property
    def is_up(self) -> bool:
        return self.process is not None and self.process.returncode is None and not self.is_hung

    async def start(self) -> None:
        """Starts it unless it runs, and returns when it listens."""
        if self.is_hung:
            self._signal(signal.SIGCONT)
            self.is_hung = False
        if self.is_up:
            return
        self.process = await asyncio.create_subprocess_exec(
            str(self.program),
            "replicas",
            f"-ports={self.http_port}:{self.grpc_port}",
            *self.flags,
            stdout=asyncio.subprocess.PIPE,
        )
        assert self.process.stdout is not None
        assert await self.process.stdout.readline(), "the replica does not listen"

    async def kill(self) -> None:
        self._signal(signal.SIGKILL)
        if self.process is not None:
            await self.process.wait()
        self.is_hung = False

    def hang(self) -> None:
        self._signal(signal.SIGSTOP)
        self.is_hung = True

    async def drain(self) -> None:
        """Takes nothing new, and returns when its streams have ended and it has."""
        self._signal(signal.SIGTERM)
        if self.process is not None:
            await self.process.wait()

    def _signal(self, number: int) -> None:
        if self.process is not None and self.process.returncode is None:
            self.process.send_signal(number)


@contextlib.asynccontextmanager
async def compiled_replicas(number: int, *flags: str) -> AsyncIterator[list[CompiledReplica]]:
    """So many, each in a process of its own, until the block ends."""
    program = await asyncio.to_thread(ensure_program)
    ports = free_ports(2 * number)
    fleet = [
        CompiledReplica(program, http, grpc, flags)
        for http, grpc in zip(ports[::2], ports[1::2], strict=True)
    ]
    try:
        for replica in fleet:
            await replica.start()
        yield fleet
    finally:
        for replica in fleet:
            await replica.kill()


async def flap(fleet: list[CompiledReplica], rng: Random, seconds: float) -> dict[str, int]:
    """Kills, hangs, drains and starts replicas at random; ends with all of them up.

    Two are up at any time. Returns how often each was done.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    done = dict.fromkeys(("start", "kill", "hang", "drain"), 0)
    draining: set[asyncio.Task[None]] = set()
    leaving: list[CompiledReplica] = []
    while loop.time() < end:
        leaving = [one for one in leaving if one.process and one.process.returncode is None]
        up = [one for one in fleet if one.is_up and one not in leaving]
        down = [one for one in fleet if not one.is_up]
        if down and (len(up) <= 2 or rng.random() < 0.5):
            await rng.choice(down).start()
            what = "start"
        elif len(up) > 2:
            one, what = rng.choice(up), rng.choice(("kill", "hang", "drain"))
            if what == "kill":
                await one.kill()
            elif what == "hang":
                one.hang()
            else:
                leaving.append(one)
                draining.add(asyncio.create_task(one.drain()))
        else:
            what = ""
        if what:
            done[what] += 1
        await asyncio.sleep(rng.uniform(0.1, 0.8))
    await asyncio.gather(*draining)
    for one in fleet:
        await one.start()
    return done


async def ask(program: Path, target: str, protocol: str, **flags: float | str) -> dict[str, Any]:
    """Runs the compiled client to its end, and returns what it tells."""
    given = [f"-{name.replace('_', '-')}={value}" for name, value in flags.items()]
    process = await asyncio.create_subprocess_exec(
        str(program),
        "client",
        f"-targets={target}",
        f"-protocol={protocol}",
        *given,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        out, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0
    told: dict[str, Any] = json.loads(out)
    return told
