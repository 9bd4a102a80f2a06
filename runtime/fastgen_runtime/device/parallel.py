"""The process group of a model's ranks: sums of what each computed of a layer.

Ranks are processes of one machine: gloo over loopback between CPUs, NCCL between GPUs. They meet in
a file without a name, so that there is no port or path that two replicas could both want.
"""

import os
from datetime import timedelta
from typing import Any, Final

import torch
from torch import Tensor
from torch import distributed as dist

from fastgen_runtime.engine.rank_channel import LostError
from fastgen_runtime.models.shard import Shard

_c10d: Final[Any] = dist
"""Untyped: torch's stubs of its process groups are not those of its extension."""


class Group:
    """One rank's membership. rendezvous: descriptor of an empty file that all ranks hold; it is the
    group's from now on.

    answer_seconds: how long the others may take to compute their parts of the same layer. Equal
    parts take about equally long, so that this is not the time of a step.
    """

    def __init__(
        self, shard: Shard, rendezvous: int, device: torch.device, answer_seconds: float
    ) -> None:
        self._shard = shard
        self._rendezvous = rendezvous
        self._device = device
        self._timeout = timedelta(seconds=answer_seconds)
        self._group: Any = None

    def join(self) -> None:
        """Waits for the others; raises LostError. All ranks join at the same time."""
        rank, size = self._shard.rank, self._shard.size
        try:
            store = _c10d.FileStore(f"/proc/self/fd/{self._rendezvous}", size)
            store.set_timeout(self._timeout)
            if self._device.type == "cuda":
                kind, options = _c10d.ProcessGroupNCCL, _c10d.ProcessGroupNCCL.Options()
            else:
                kind, options = _c10d.ProcessGroupGloo, _c10d.ProcessGroupGloo._Options()
                # By its host's name a machine may not find itself, and others could find it.
                options._devices = [kind.create_device(hostname="127.0.0.1")]
            options._timeout = self._timeout
            self._group = kind(store, rank, size, options)
        except RuntimeError as error:
            raise LostError(str(error)) from error

    def add_up(self, part: Tensor) -> Tensor:
        """The sum of all ranks' parts, the same in each; in place. Raises LostError."""
        if self._group is None:
            raise LostError("the ranks have not joined")
        try:
            self._group.allreduce([part]).wait()
        except RuntimeError as error:
            raise LostError(str(error)) from error
        return part

    def leave(self) -> None:
        """Ends the membership; the others learn of it when they next add up."""
        self._group = None  # and with it what has the file open by its descriptor's number
        os.close(self._rendezvous)
