"""A launch as a value: what would be run can be run, interpreted, compiled or counted."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


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
