"""A line of the budget: a launch that the dispatch table can select, and what it must hold."""

from collections.abc import Callable
from dataclasses import dataclass

from fastgen_kernels.triton_kernels.launch import Launch

AMPERE = 80
HOPPER = 90


@dataclass(frozen=True, slots=True)
class Entry:
    """name: unique; begins with the operation. architecture: 80, 90.

    make: of arguments that are aligned and strided as in a forward pass; their values do not
    matter. instructions: mnemonics that make the kernel fast, at least one of each. common:
    compiled in `make test`, because the tested models select it; the others in `make test-slow`.
    """

    name: str
    architecture: int
    make: Callable[[], Launch]
    instructions: tuple[str, ...] = ()
    common: bool = False

    @property
    def key(self) -> str:
        """Of the entry among those of all architectures."""
        return f"{self.name} sm_{self.architecture}"
