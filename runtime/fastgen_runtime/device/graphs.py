"""Decode steps as captured CUDA graphs: one for each size of batch that others are padded to.

A step launches some two hundred kernels, which take a GPU less time than the host; a graph is one
launch. All that differs between steps lies in buffers that stay where they are.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol

import numpy as np
import torch
from torch import Tensor

from fastgen_kernels.ragged import Integers, RaggedBatch
from fastgen_runtime.device.model import Inputs

_STEPS: Final = ((8, 1), (32, 8), (256, 16), (512, 32))
"""Up to a size, graphs are so many rows apart: padding costs little beside weights and launches."""
_LARGEST: Final = _STEPS[-1][0]
NO_SLOT: Final = -1
"""Nothing is written for a row of padding."""
_WARM_UPS: Final = 2
_NO_BATCH: Final = RaggedBatch(
    np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros((0, 0), np.int64), 1
)


class StaticPlan(Protocol):
    """See `StaticDecodePlan`."""

    def plan(self, num_rows: int) -> Any: ...

    def update(self, batch: RaggedBatch, num_rows: int) -> None: ...


Replay = Callable[[], Tensor]
Capture = Callable[[Replay], Replay]
"""From a forward pass to what computes it again, and gives the same tensor with other contents."""


def sizes_up_to(most: int) -> tuple[int, ...]:
    """Rows of the graphs for batches of up to `most` requests; none is larger than 512."""
    sizes: list[int] = []
    for end, apart in _STEPS:
        while (sizes[-1] if sizes else 0) < min(end, most):
            sizes.append((sizes[-1] if sizes else 0) + apart)
    return tuple(sizes)


def size_for(rows: int, sizes: Sequence[int]) -> int | None:
    """The smallest that holds so many rows; None when none does, or there are no rows."""
    return next((size for size in sizes if size >= rows), None) if rows else None


class DecodeGraphs:
    """Steps of single-token chunks; others are not for graphs.

    forward: hidden states [R, H] of the inputs' R rows. plans: for each window. sizes: ascending.
    """

    def __init__(
        self,
        forward: Callable[[Inputs], Tensor],
        plans: Mapping[int | None, StaticPlan],
        sizes: Sequence[int],
        device: torch.device,
        capture: Capture,
    ) -> None:
        self._plans = plans
        self._sizes = sizes
        words = torch.zeros((3, sizes[-1]), dtype=torch.int64, device=device)
        self._token_ids, self._positions, self._write_slots = words
        self._host = np.zeros((3, sizes[-1]), np.int64)
        rows = torch.arange(sizes[-1], device=device)
        self._replays: dict[int, Replay] = {}
        for size in reversed(sizes):  # the largest makes room for all
            inputs = Inputs(
                token_ids=self._token_ids[:size],
                positions=self._positions[:size],
                write_slots=self._write_slots[:size],
                attention_plans={window: plan.plan(size) for window, plan in plans.items()},
                wanted_rows=rows[:size],
            )
            self._fill(_NO_BATCH, np.zeros(0, np.int64), size)
            self._replays[size] = capture(partial(forward, inputs))

    def run(self, batch: RaggedBatch, token_ids: Integers) -> Tensor | None:
        """Hidden states [R, H] of the batch's tokens, until the next run; None: it has no graph."""
        rows = len(batch.lengths)
        size = size_for(rows, self._sizes)
        if size is None or int(batch.lengths.max()) > 1:
            return None
        self._fill(batch, token_ids, size)
        return self._replays[size]()[:rows]

    def _fill(self, batch: RaggedBatch, token_ids: Integers, size: int) -> None:
        rows = len(token_ids)
        words = self._host[:, :size]
        words[:2, rows:] = 0
        words[2, rows:] = NO_SLOT
        if rows:
            words[:, :rows] = token_ids, batch.positions, batch.write_slots
        for target, source in zip(
            (self._token_ids, self._positions, self._write_slots), words, strict=True
        ):
            target[:size].copy_(torch.from_numpy(source))
        for plan in self._plans.values():
            plan.update(batch, size)


def cuda_capture() -> Capture:
    """Graphs that share their memory, since one runs at a time."""
    pool: Any = torch.cuda.graph_pool_handle()

    def capture(forward: Replay) -> Replay:
        # Kernels are compiled and loaded before: neither can be captured.
        stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UPS):
                forward()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            result = forward()

        def replay() -> Tensor:
            graph.replay()
            return result

        return replay

    return capture
