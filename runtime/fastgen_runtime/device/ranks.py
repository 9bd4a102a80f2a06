"""Rank 0's hold on the other ranks: starts them, tells them each step, and knows how they ended."""

import os
import signal
import socket
import subprocess
import sys
import time
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import torch
from torch import Tensor

from fastgen_api.names import StartupFailure
from fastgen_kernels.ragged import Integers, RaggedBatch
from fastgen_runtime.device.parallel import Group
from fastgen_runtime.engine.rank_channel import (
    Begin,
    Connection,
    Failed,
    Forward,
    Loaded,
    LostError,
    Message,
    RankConfig,
    RankError,
)
from fastgen_runtime.engine.runner_config import RunnerConfig
from fastgen_runtime.models.shard import Shard
from fastgen_runtime.startup_error import StartupError

ANSWER_SECONDS: Final = 10.0
"""See `parallel.Group`; as long as a rank that is stopped may hold up all others."""
_BLAME_SECONDS: Final = 1.0
"""For the others to say what they know of why a sum did not come about."""
_STOP_SECONDS: Final = 2.0


@dataclass(slots=True)
class Member:
    """Another rank as rank 0 knows it. loaded, failure: what it has said; last words come last."""

    rank: int
    process: "subprocess.Popen[bytes]"
    connection: Connection
    loaded: Loaded | None = None
    failure: Failed | None = None

    def listen(self, wait_seconds: float = 0) -> None:
        """Takes in a message that is here, and keeps it: whoever listens may wait for another."""
        if self.failure is not None or not self.connection.has_message(wait_seconds):
            return
        try:
            message = self.connection.receive()
        except (EOFError, OSError):
            return
        if isinstance(message, Loaded):
            self.loaded = message
        elif isinstance(message, Failed):
            self.failure = message

    def how_it_ended(self) -> str | None:
        """In words; None while it runs, or ends because others did."""
        code = self.process.poll()
        self.listen()
        if self.failure is not None:
            return None if self.failure.is_lost else f"rank {self.rank}: {self.failure.sentence}"
        if code is None:
            return None
        if code < 0:
            return f"rank {self.rank} was killed by {signal.Signals(-code).name}"
        return f"rank {self.rank} ended with exit code {code}"


class Ranks:
    """Ranks 1, 2, … as processes of their own; they end when this does, or its process."""

    def __init__(self, members: tuple[Member, ...], group: Group) -> None:
        self._members = members
        self._group = group
        self.close = weakref.finalize(self, _end, members, group)

    @classmethod
    def start(cls, model_path: Path, config: RunnerConfig, device: torch.device) -> "Ranks":
        """Fresh interpreters, which load their parts and inherit the log and the environment."""
        if sys.platform != "linux":
            sentence = "tensor_parallel_size above 1 needs Linux"
            raise StartupError(StartupFailure.CONFIG_INVALID, sentence)
        size = config.tensor_parallel_size
        rendezvous = os.memfd_create("fastgen-ranks")
        members = tuple(
            _start_member(
                RankConfig(
                    model_path=str(model_path),
                    runner=config,
                    rank=rank,
                    socket=-1,
                    rendezvous=rendezvous,
                    answer_seconds=ANSWER_SECONDS,
                    parent_pid=os.getpid(),
                )
            )
            for rank in range(1, size)
        )
        return cls(members, Group(Shard(0, size), rendezvous, device, ANSWER_SECONDS))

    def wait_until_loaded(self) -> list[int]:
        """Bytes that each rank holds with its weights; raises StartupError."""
        residents = []
        for member in self._members:
            while member.loaded is None:
                self._check_start()
                member.listen(_BLAME_SECONDS)
            residents.append(member.loaded.resident_bytes)
        return residents

    def begin(self, num_blocks: int) -> None:
        """Makes one group of the ranks, all of which have loaded; raises StartupError."""
        try:
            self._send(Begin(num_blocks))
            self._group.join()
        except (LostError, RankError) as error:
            lost = error if isinstance(error, RankError) else self._blame(error)
            raise StartupError(StartupFailure.ENGINE_FAILED, str(lost)) from error

    def forward(self, batch: RaggedBatch, token_ids: Integers) -> None:
        """Makes the others compute their parts of a step; raises RankError."""
        self._send(Forward.of(batch, token_ids))

    def add_up(self, part: Tensor) -> Tensor:
        """The sum of all ranks' parts, in place; raises RankError."""
        try:
            return self._group.add_up(part)
        except LostError as error:
            raise self._blame(error) from error

    def check(self) -> None:
        """Raises RankError when one has ended."""
        if not self.close.alive:
            raise RankError("the other ranks were ended, since a step was not computed to its end")
        for member in self._members:
            if words := member.how_it_ended():
                raise RankError(words)

    def _check_start(self) -> None:
        for member in self._members:
            words = member.how_it_ended()
            if words is None:
                continue
            if member.failure is not None:
                raise StartupError(StartupFailure(member.failure.reason), words)
            words = f"{words} while it loaded the model"
            if member.process.returncode == -signal.SIGKILL:
                words = f"{words}: most likely the memory limit is too low"
                raise StartupError(StartupFailure.OUT_OF_MEMORY, words)
            raise StartupError(StartupFailure.ENGINE_FAILED, words)

    def _send(self, message: Message) -> None:
        if not self.close.alive:
            self.check()
        try:
            for member in self._members:
                member.connection.send(message)
        except OSError as error:
            raise self._blame(error) from error

    def _blame(self, error: Exception) -> RankError:
        """Which rank it is that `error` comes of: one that failed, else one that is silent."""
        deadline = time.monotonic() + _BLAME_SECONDS
        while time.monotonic() < deadline:
            try:
                self.check()
            except RankError as known:
                return known
            time.sleep(0.01)
        silent = [str(member.rank) for member in self._members if member.failure is None]
        if silent:
            return RankError(f"rank {' and rank '.join(silent)} did not answer in time")
        return RankError(f"the ranks lost one another: {error}")


def _start_member(config: RankConfig) -> Member:
    ours, theirs = socket.socketpair()
    with theirs:
        # One that is stopped reads nothing: a step that does not fit its buffer must not wait.
        ours.settimeout(config.answer_seconds)
        told = msgspec.structs.replace(config, socket=theirs.fileno())
        process = subprocess.Popen(
            [sys.executable, "-m", "fastgen_runtime.rank_main", msgspec.json.encode(told).decode()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=(told.socket, told.rendezvous),
        )
    return Member(config.rank, process, Connection(ours))


def _end(members: tuple[Member, ...], group: Group) -> None:
    """A rank ends when its socket is closed; one that cannot is killed."""
    for member in members:
        member.connection.close()
    for member in members:
        try:
            member.process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            member.process.kill()
            member.process.wait()
    group.leave()
