"""Where `gpu.py` computes, how it takes times, and what that place can do at most."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from fastgen_kernels.dispatch import Kernels, kernels_for
from fastgen_kernels.triton_kernels.tiling import Gpu
from fastgen_runtime.device.found_device import find_device

_COPIES: Final = 5
_PRODUCTS: Final = 4


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """gpu: what plans depend on. has_plans: whether the kernels are Triton's, whose attention takes
    the plans of `make_plan`.
    """

    device: torch.device
    kernels: Kernels
    dtype: torch.dtype
    gpu: Gpu
    name: str
    has_plans: bool

    @property
    def is_gpu(self) -> bool:
        return self.device.type == "cuda"

    def random(self, *shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
        """Normal numbers, the same on every device of a kind."""
        generator = torch.Generator(self.device).manual_seed(seed)
        made = torch.randn(shape, generator=generator, device=self.device, dtype=self.dtype)
        return made.mul_(scale)

    def synchronize(self) -> None:
        if self.is_gpu:
            torch.cuda.synchronize()


def gpu_target() -> Target:
    """The machine's GPU, as the engine would use it. Raises StartupError for one that it refuses,
    and RuntimeError, in a plain sentence, where there is none."""
    found = find_device()
    if found.kind != "cuda":
        raise RuntimeError(
            "no GPU is here: this benchmark needs an NVIDIA GPU of compute capability 8.0 or "
            "newer and its driver; --dry runs its parts on the CPU, for what they are worth"
        )
    from fastgen_kernels.triton_kernels.attention import gpu_of

    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    return Target(
        device,
        kernels_for(found),
        torch.bfloat16,
        gpu_of(device),
        torch.cuda.get_device_name(device),
        has_plans=True,
    )


def dry_target() -> Target:
    """The CPU, by the kernels' twins."""
    from fastgen_kernels.dispatch import Device

    cpu = torch.device("cpu")
    return Target(
        cpu, kernels_for(Device("cpu")), torch.float32, Gpu(90, 2), "CPU, dry", has_plans=False
    )


def seconds(target: Target, function: Callable[[], Any], rounds: int) -> float:
    """Median time of one call. On a GPU it is captured, so that the host's time is not in it."""
    if not target.is_gpu:
        return _by_clock(function, rounds)
    return _by_events(_captured(function), rounds)


def eager_seconds(target: Target, function: Callable[[], Any], rounds: int) -> float:
    """As `seconds`, of what cannot be captured: the GPU's time, and the host's where it is more."""
    if not target.is_gpu:
        return _by_clock(function, rounds)
    for _ in range(3):
        function()
    return _by_events(function, rounds)


def copy_bytes_per_second(target: Target, num_bytes: int, rounds: int) -> float:
    """Of a copy in the device's memory, read and written bytes together."""
    source = torch.zeros(num_bytes, dtype=torch.uint8, device=target.device)
    copy = torch.empty_like(source)

    def run() -> None:
        for _ in range(_COPIES):
            copy.copy_(source)

    return 2 * num_bytes * _COPIES / seconds(target, run, rounds)


def operations_per_second(target: Target, size: int, rounds: int) -> float:
    """Of a product of square matrices by torch's own library."""
    left, right = target.random(size, size), target.random(size, size, seed=1)
    out = torch.empty_like(left)

    def run() -> None:
        for _ in range(_PRODUCTS):
            torch.mm(left, right, out=out)

    return 2 * size**3 * _PRODUCTS / seconds(target, run, rounds)


def _by_clock(function: Callable[[], Any], rounds: int) -> float:
    function()
    times = []
    for _ in range(rounds):
        begun = time.perf_counter()
        function()
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


def _by_events(function: Callable[[], Any], rounds: int) -> float:
    function()
    torch.cuda.synchronize()
    event: Any = torch.cuda.Event
    pairs = []
    for _ in range(rounds):
        begin, end = event(enable_timing=True), event(enable_timing=True)
        begin.record()
        function()
        end.record()
        pairs.append((begin, end))
    torch.cuda.synchronize()
    return statistics.median(float(begin.elapsed_time(end)) for begin, end in pairs) * 1e-3


def _captured(function: Callable[[], Any]) -> Callable[[], None]:
    """A CUDA graph of a call; kernels are compiled and loaded before."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            function()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    return graph.replay
