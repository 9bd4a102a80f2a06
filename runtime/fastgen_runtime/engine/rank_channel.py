"""What rank 0 and another rank tell one another, over a pair of sockets that only they hold."""

import select
import socket
import struct
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from fastgen_kernels.ragged import Integers, RaggedBatch
from fastgen_runtime.engine.runner_config import RunnerConfig

_LENGTH: Final = struct.Struct("=Q")


class RankError(RuntimeError):
    """A rank has ended or does not answer; the text says which and why."""


class LostError(RuntimeError):
    """A rank's sum did not come about: another one is gone, or does not answer in time."""


class RankConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank is told at its start. socket, rendezvous: descriptors that it inherits.

    answer_seconds: see `parallel.Group`.
    """

    model_path: str
    runner: RunnerConfig
    rank: int
    socket: int
    rendezvous: int
    answer_seconds: float
    parent_pid: int


class Loaded(msgspec.Struct, frozen=True, tag=True):
    """The rank has its weights. resident_bytes: what it holds with them."""

    resident_bytes: int


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The rank ends: a `names.StartupFailure` and a sentence.

    is_lost: nothing is wrong with it, but others were gone.
    """

    reason: str
    sentence: str
    is_lost: bool = False


class Begin(msgspec.Struct, frozen=True, tag=True):
    """All ranks have loaded: reserve the cache, join the others."""

    num_blocks: int


class Forward(msgspec.Struct, frozen=True, tag=True):
    """The tokens of a step and where they go; integers of 32 bits."""

    token_ids: bytes
    starts: bytes
    lengths: bytes
    block_tables: bytes

    @classmethod
    def of(cls, batch: RaggedBatch, token_ids: Integers) -> "Forward":
        """token_ids: [T]."""
        return cls(
            _pack(token_ids), _pack(batch.starts), _pack(batch.lengths), _pack(batch.block_tables)
        )

    def read(self, block_size: int) -> tuple[RaggedBatch, Integers]:
        """The batch and its token ids [T]."""
        starts = _unpack(self.starts)
        tables = _unpack(self.block_tables).reshape(len(starts), -1)
        batch = RaggedBatch(starts, _unpack(self.lengths), tables, block_size)
        return batch, _unpack(self.token_ids)


Message = Loaded | Failed | Begin | Forward

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Message)


class Connection:
    """One end: whole messages, in order."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._poll = select.poll()
        self._poll.register(end, select.POLLIN)

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Message) -> None:
        """Raises OSError when the other end is gone, or takes nothing for the socket's timeout."""
        content = _encoder.encode(message)
        self._socket.sendall(_LENGTH.pack(len(content)) + content)

    def receive(self) -> Message:
        """Waits for a message; raises EOFError or OSError when the other end is gone."""
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
        return _decoder.decode(self._read(length))

    def has_message(self, wait_seconds: float = 0) -> bool:
        """Whether there is something to receive, if only the end."""
        return bool(self._poll.poll(wait_seconds * 1000))

    def close(self) -> None:
        self._socket.close()

    def _read(self, size: int) -> bytearray:
        content = bytearray(size)
        view, done = memoryview(content), 0
        while done < size:
            count = self._socket.recv_into(view[done:])
            if not count:
                raise EOFError
            done += count
        return content


def _pack(values: NDArray[np.int64]) -> bytes:
    return values.astype(np.int32).tobytes()


def _unpack(content: bytes) -> Integers:
    return np.frombuffer(content, np.int32).astype(np.int64)
