"""Compiles a launch for an architecture, and reads the machine code.

What a launch would be specialised to (alignment, values of 1, types) is asked of Triton itself, so
that it is the very code that a GPU would run. Triton must not interpret in this process.
"""

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.runtime.jit import create_function_from_signature

from fastgen_kernels.triton_kernels.launch import Launch

SHARED_LIMIT_BYTES: Final[Mapping[int, int]] = {80: 101_376, 90: 232_448}
"""Most shared memory of a block: Triton compiles beyond it. For 80 it is what 86 and 89 have, which
run the same kernels (CUDA C++ Programming Guide, technical specifications by capability)."""
MOST_REGISTERS: Final = 255
_SPILLS: Final = ("STL", "LDL")
_TOOLS: Final = Path(triton.__file__).parent / "backends/nvidia/bin"
_MNEMONIC: Final = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9.]*)", re.M)


@dataclass(frozen=True, slots=True)
class Report:
    """registers: of a thread. shared_bytes: of a block. spills: loads and stores of registers that
    did not fit. instructions: how often each is in the code, by its full mnemonic.
    """

    registers: int
    shared_bytes: int
    spills: int
    instructions: Mapping[str, int]

    def count(self, mnemonic: str) -> int:
        """Instructions that begin with these parts: `LDGSTS.E` counts `LDGSTS.E.BYPASS.128`."""
        return sum(
            count
            for name, count in self.instructions.items()
            if name == mnemonic or name.startswith(f"{mnemonic}.")
        )


def specialisation(launch: Launch, architecture: int) -> tuple[Any, ...]:
    """What Triton keys its compiled kernels by: equal for launches that share one."""
    return _specialise(launch, architecture)[1]


def compile_launch(launch: Launch, architecture: int) -> Any:
    """architecture: 80, 90. Gives Triton's compiled kernel; raises its CompilationError."""
    kernel, target = launch.kernel, GPUTarget("cuda", architecture, 32)
    bound, specialised, backend = _specialise(launch, architecture)
    asked = {"num_warps": launch.num_warps, "num_stages": launch.num_stages}
    options, signature, constants, attributes = kernel._pack_args(
        backend, asked, bound, specialised, None
    )
    source = ASTSource(kernel, signature, constants, attributes)
    return triton.compile(source, target=target, options=options.__dict__)


def report(launch: Launch, architecture: int) -> Report:
    """Compiles, or takes from Triton's cache, and inspects."""
    compiled = compile_launch(launch, architecture)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        usage = _told("cuobjdump", "-res-usage", file.name)
        # To list instructions it need not follow branches, which takes a third of its time.
        code = _told("nvdisasm", "--no-dataflow", "--print-code", file.name)
    counts = Counter(match[1] for match in _MNEMONIC.finditer(code))
    found = re.search(r"REG:(\d+)", usage)
    if found is None or not counts:
        raise ValueError(f"Triton's tools told nothing of {launch.kernel.__name__}: {usage[:200]}")
    return Report(
        registers=int(found[1]),
        shared_bytes=compiled.metadata.shared,
        spills=sum(count for name, count in counts.items() if name.split(".")[0] in _SPILLS),
        instructions=counts,
    )


def _specialise(launch: Launch, architecture: int) -> tuple[Any, tuple[Any, ...], Any]:
    kernel = launch.kernel
    backend = make_backend(GPUTarget("cuda", architecture, 32))
    binder = create_function_from_signature(kernel.signature, kernel.params, backend)
    bound, specialised, _ = binder(**launch.arguments)
    return bound, tuple(specialised), backend


def _told(tool: str, *arguments: str) -> str:
    """By one of the tools that come with Triton."""
    return subprocess.run(
        [_TOOLS / tool, *arguments], capture_output=True, text=True, check=True
    ).stdout
