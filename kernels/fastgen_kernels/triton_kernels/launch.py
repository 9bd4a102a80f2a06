"""A launch as a value: what would be run can be run, interpreted, compiled or counted."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Launch:
    """A kernel with everything that decides how it is compiled.

    kernel: of `triton.jit`. grid: 1 to 3 sizes. arguments: by name, the constants among them.
    """

    kernel: Any
    grid: tuple[int, ...]
    arguments: Mapping[str, Any]
    num_warps: int = 4
    num_stages: int = 1

    def run(self) -> None:
        """On the current stream, without waiting; nothing for an empty grid."""
        if all(self.grid):
            self.kernel[self.grid](
                **self.arguments, num_warps=self.num_warps, num_stages=self.num_stages
            )


def check_heads_together(name: str, tensor: Tensor) -> None:
    """Raises ValueError when the heads of [N, heads, size] do not follow one another in memory."""
    _, heads, size = tensor.shape
    if tensor.stride(2) != 1 or (heads > 1 and tensor.stride(1) != size):
        raise ValueError(f"{name}: heads must be side by side, the strides are {tensor.stride()}")
