"""What computes a step's hidden states and logits, whichever way."""

from typing import Protocol

import torch
from torch import Tensor

from fastgen_kernels.dispatch import Kernels
from fastgen_kernels.heads import Heads
from fastgen_kernels.ragged import Integers, RaggedBatch
from fastgen_runtime.device.graphs import DecodeGraphs
from fastgen_runtime.device.model import Inputs, Model
from fastgen_runtime.models.model_config import ModelConfig


class Forward(Protocol):
    """A model with its paged cache. Not thread-safe; called in inference mode."""

    def hidden(self, batch: RaggedBatch, token_ids: Integers, rows: Integers) -> Tensor:
        """The last hidden states [R, hidden size], normalised, of `rows` [R] among the batch's T.

        token_ids: [T]; writes their keys and values into the cache.
        """
        ...

    def lm_head(self, hidden: Tensor) -> Tensor:
        """Logits [R, vocabulary] of hidden states [R, hidden size]."""
        ...

    def close(self) -> None:
        """Ends what computes beside this thread; nothing can be computed any more."""
        ...


class ModelForward:
    """By one kernel after the other: `Model`, on any device."""

    def __init__(
        self,
        model: Model,
        config: ModelConfig,
        kernels: Kernels,
        cache: Tensor,
        graphs: DecodeGraphs | None = None,
    ) -> None:
        """cache: [layers, 2, blocks, block size, kv heads, D]. graphs: of this model and cache."""
        self._model = model
        self._windows = config.distinct_windows
        self._kernels = kernels
        self._cache = cache
        self._slots = cache.flatten(2, 3)
        self._graphs = graphs
        self._heads = Heads(config.num_heads, config.num_kv_heads, config.head_dim)

    def hidden(self, batch: RaggedBatch, token_ids: Integers, rows: Integers) -> Tensor:
        """As `Forward`; decodes by a captured graph where there is one."""
        device = self._cache.device
        wanted_rows = torch.from_numpy(rows).to(device)
        if self._graphs is not None:
            hidden = self._graphs.run(batch, token_ids)
            if hidden is not None:
                return hidden[wanted_rows]
        inputs = Inputs(
            token_ids=torch.from_numpy(token_ids).to(device),
            positions=torch.from_numpy(batch.positions).to(device),
            write_slots=torch.from_numpy(batch.write_slots).to(device),
            attention_plans={
                window: self._kernels.plan_attention(
                    batch, self._heads, self._cache.dtype, device, window
                )
                for window in self._windows
            },
            wanted_rows=wanted_rows,
        )
        return self._model.hidden(inputs, self._slots)

    def lm_head(self, hidden: Tensor) -> Tensor:
        """As `Forward`."""
        return self._model.lm_head(hidden)

    def close(self) -> None:
        """Nothing computes beside this thread."""
