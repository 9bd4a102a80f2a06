"""Loads a rank's part of a model, and reserves its part of the cache."""

from collections.abc import Callable, Sequence
from typing import Final

import torch
from torch import Tensor

from fastgen_api.names import StartupFailure
from fastgen_api.spec import DType
from fastgen_kernels.dispatch import kernels_for
from fastgen_kernels.gpu_limits import check
from fastgen_kernels.heads import Heads
from fastgen_kernels.large_pages import large_pages
from fastgen_kernels.torch_twins.linear import can_pack
from fastgen_runtime.device.cpu_path import StepForward, find_cpu_path
from fastgen_runtime.device.forward import Forward, ModelForward
from fastgen_runtime.device.found_device import find_device, offer_of
from fastgen_runtime.device.graphs import DecodeGraphs, cuda_capture, sizes_up_to
from fastgen_runtime.device.model import Model, whole
from fastgen_runtime.device.weight_format import weight_format
from fastgen_runtime.device.weights import load_weights
from fastgen_runtime.engine import cores
from fastgen_runtime.engine.runner_config import CpuStepUse, RunnerConfig
from fastgen_runtime.log import log_event, log_warning
from fastgen_runtime.models.capacity import (
    Packing,
    activation_bytes,
    activation_item_bytes,
    block_bytes,
    cache_bytes,
    model_length,
    num_blocks_for,
    resolve_dtype,
)
from fastgen_runtime.models.checkpoint import Checkpoint
from fastgen_runtime.models.preflight import Demand, Offer, preflight
from fastgen_runtime.models.shard import Shard, check_size
from fastgen_runtime.startup_error import StartupError

_DTYPES: Final = {
    DType.FLOAT32: torch.float32,
    DType.BFLOAT16: torch.bfloat16,
    DType.FLOAT16: torch.float16,
}


class Loader:
    """Knows what a rank needs of a checkpoint.

    model_config: the rank's part of the model's. step_tokens: of the largest step.
    """

    def __init__(self, checkpoint: Checkpoint, config: RunnerConfig, rank: int = 0) -> None:
        """Raises StartupError when the model cannot be split so, or is not that long."""
        check_size(checkpoint.config, config.tensor_parallel_size, "tensor_parallel_size")
        ranks = config.tensor_parallel_size
        # CPUs' ranks share the machine's cores.
        self._threads = config.threads or cores.chosen_threads(ranks)
        torch.set_num_threads(self._threads)
        found = find_device(rank)
        self.kernels = kernels_for(found)
        self.device = torch.device(found.kind)
        if found.kind == "cuda":
            self.device = torch.device("cuda", rank)
            torch.cuda.set_device(self.device)  # Triton launches where torch is
            log_event("GPU", device=str(found), name=torch.cuda.get_device_name(self.device))
        self._whole = checkpoint.config
        self._shard = Shard(rank, ranks)
        self.model_config = self._shard.config(checkpoint.config)
        self._config = config
        self._length = model_length(checkpoint.config, config.max_model_length)
        on_gpu = self.device.type == "cuda"
        flags = cores.cpu_flags()
        self._form = weight_format(config.quantization, found, checkpoint.config)
        self._cpu_path = None
        if not on_gpu and config.cpu_step is CpuStepUse.AUTO and rank == 0:
            self._cpu_path = find_cpu_path(checkpoint.config, config, flags, self._form)
        if not on_gpu and self._cpu_path is None and self._form is not None and rank == 0:
            log_warning(
                "kernel by kernel, CPUs save memory by weights of 8 bits, and steps take longer"
            )
        self._resolved = resolve_dtype(config.dtype, flags, on_gpu=on_gpu)
        if self._cpu_path is not None:
            self._resolved = self._cpu_path.dtype
        self._dtype = _DTYPES[self._resolved]
        if on_gpu:
            self._check_kernels()
        self._tensors = checkpoint.tensors()
        self.step_tokens = config.max_step_tokens

    def preflight(self) -> None:
        """For all ranks, before any of them loads; raises StartupError when they do not fit."""
        config = self._config
        demand = Demand(
            dtype=self._resolved,
            packing=self._packing(),
            longest=self._length,
            block_size=config.block_size,
            max_tokens=config.max_step_tokens,
            most_requests=config.max_concurrent_requests,
            least_tokens=config.least_step_tokens,
            ranks=self._shard.size,
            quantized=self._form is not None,
        )
        shapes = {name: tensor.shape for name, tensor in self._tensors.items()}
        offer = offer_of(self.device, config.memory_percent)
        if self.device.type != "cuda":
            offer = offer.share(self._shard.size)
        self.step_tokens = preflight(self.model_config, shapes, demand, offer).step_tokens

    def load(self, add_up: Callable[[Tensor], Tensor] | None = None) -> Callable[[Tensor], Forward]:
        """Reads the weights; raises StartupError. What it returns computes over a cache.

        add_up: see `Model`.
        """
        if (path := self._cpu_path) is not None:
            step_weights = path.load(self._whole, self._tensors, self.kernels, self._length)
            return lambda cache: StepForward(path, step_weights, self._threads, cache)
        with torch.no_grad():
            weights = load_weights(
                self._whole, self._tensors, self.kernels, self._dtype, self.device, self._shard,
                self._form,
            )  # fmt: skip
            model = Model(self.model_config, weights, self.kernels, self._length, add_up or whole)
        return lambda cache: ModelForward(
            model, self.model_config, self.kernels, cache, self._graphs(model, cache)
        )

    def _packing(self) -> Packing:
        """How linear layers are kept."""
        if self._cpu_path is not None:
            return Packing.STEP
        packs = can_pack(torch.empty(0, dtype=self._dtype, device=self.device))
        return Packing.LAYERS if packs else Packing.NONE

    def num_blocks(self, residents: Sequence[int]) -> int:
        """Blocks that each rank has memory for, now that all have loaded their weights.

        residents: bytes that each rank holds of the machine's memory; GPUs are taken for alike.
        Raises StartupError.
        """
        config, most = self._config, max(residents)
        if self.device.type == "cuda":
            offer = offer_of(self.device, config.memory_percent)
        else:
            offer = Offer(
                cores.memory_limit_bytes(),
                cores.memory_available_bytes() + sum(residents) - most,
                most,
                config.memory_percent,
            ).share(len(residents))
        item = self._dtype.itemsize
        available = cache_bytes(
            offer.limit_bytes,
            offer.available_bytes,
            offer.resident_bytes,
            offer.memory_percent,
            activation_bytes(
                self.model_config,
                self.step_tokens,
                config.max_concurrent_requests,
                activation_item_bytes(self._packing(), item),
            ),
        )
        return num_blocks_for(
            available,
            block_bytes(self.model_config, config.block_size, item),
            config.block_size,
            self._length,
            config.max_concurrent_requests,
        )

    def cache(self, num_blocks: int) -> Tensor:
        """[layers, 2, blocks, block size, kv heads, D], for this rank's heads."""
        model = self.model_config
        shape = (
            model.num_layers, 2, num_blocks, self._config.block_size,
            model.num_kv_heads, model.head_dim,
        )  # fmt: skip
        # Pages of either that no request has used yet cost no memory.
        if self.device.type == "cpu":
            return large_pages(shape, self._dtype)
        return torch.empty(shape, dtype=self._dtype, device=self.device)

    @torch.inference_mode()
    def _graphs(self, model: Model, cache: Tensor) -> DecodeGraphs | None:
        """Captured decode steps, on a GPU that computes alone; sums over ranks are not captured."""
        if self.device.type != "cuda" or self._shard.size > 1:
            return None
        from fastgen_kernels.triton_kernels.attention import static_plan

        sizes = sizes_up_to(self._config.max_concurrent_requests)
        block_size, slots = self._config.block_size, cache.flatten(2, 3)
        plans = {
            window: static_plan(
                sizes[-1], -(-self._length // block_size), self._heads, block_size, self.device,
                window,
            )
            for window in self.model_config.distinct_windows
        }  # fmt: skip
        return DecodeGraphs(
            lambda inputs: model.hidden(inputs, slots), plans, sizes, self.device, cuda_capture()
        )

    @property
    def _heads(self) -> Heads:
        config = self.model_config
        return Heads(config.num_heads, config.num_kv_heads, config.head_dim)

    def _check_kernels(self) -> None:
        """Raises StartupError for what the GPU's kernels are not made for."""
        try:
            check(self._heads, self._config.block_size, self._dtype)
        except ValueError as error:
            raise StartupError(StartupFailure.CONFIG_INVALID, str(error)) from error
