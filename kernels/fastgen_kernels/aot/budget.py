"""The table of what each kernel takes of a GPU's multiprocessor, `kernels/BUDGET.md`."""

from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Final

from fastgen_kernels.aot.catalogue import catalogue
from fastgen_kernels.aot.compilation import MOST_REGISTERS, SHARED_LIMIT_BYTES, Report, report

_FAST: Final = ("LDGSTS", "UTMALDG", "HGMMA", "HMMA", "IMMA", "QGMMA", "LDG.E.128")
"""Instructions that the table tells of: asynchronous copies, tensor cores, wide loads."""
HEAD: Final = """# What the kernels take of a GPU

Compiled ahead of time with the pinned Triton, without a GPU, by
`python -m fastgen_kernels.aot kernels/BUDGET.md`; tests compare each line with what is compiled.
Registers are a thread's (of 255), shared memory a block's (of 99 KiB on sm_80 and the like, 227 on
sm_90). No kernel spills registers to memory. Instructions: how often those that make it fast are in
the code: asynchronous copies (LDGSTS), tensor cores (HMMA, HGMMA), loads of 16 bytes (LDG.E.128).

| kernel | architecture | warps | stages | registers | shared bytes | spills | instructions |
|---|---|---|---|---|---|---|---|
"""


def line(key: str, told: Report) -> str:
    """The entry's line of the table."""
    entry = catalogue()[key]
    launch = entry.make()
    counts = ", ".join(f"{name} {told.count(name)}" for name in _FAST if told.count(name))
    return (
        f"| {entry.name} | sm_{entry.architecture} | {launch.num_warps} | {launch.num_stages} | "
        f"{told.registers} | {told.shared_bytes} | {told.spills} | {counts} |"
    )


def key_of(line: str) -> str:
    """The key of a line's entry; of other lines, nothing that an entry is called."""
    return " ".join(part.strip() for part in line.split("|")[1:3])


def table(lines: Iterable[str], before: str = "") -> str:
    """The file: these lines in the catalogue's order, and what `before` has of other entries."""
    known = {key_of(line): line for line in (*before.splitlines(), *lines)}
    ordered = [known[key] for key in catalogue() if key in known]
    return HEAD + "".join(f"{line}\n" for line in ordered)


def excesses(key: str, told: Report) -> list[str]:
    """What is over the limits or lacks, in sentences; none is as it should be."""
    entry = catalogue()[key]
    limit = SHARED_LIMIT_BYTES[entry.architecture]
    found = [f"{key} has no {name}" for name in entry.instructions if not told.count(name)]
    if told.spills:
        found.append(f"{key} spills registers ({told.spills} instructions)")
    if told.registers > MOST_REGISTERS:
        found.append(f"{key} takes {told.registers} registers, {MOST_REGISTERS} are the most")
    if told.shared_bytes > limit:
        found.append(f"{key} takes {told.shared_bytes} bytes of shared memory, {limit} there are")
    return found


def reports(keys: Iterable[str], processes: int) -> Mapping[str, Report]:
    """Compiled side by side; raises what the compiler does."""
    wanted = list(keys)
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        return dict(zip(wanted, pool.map(report_of, wanted), strict=True))


def report_of(key: str) -> Report:
    """Compiled in this process; raises RuntimeError that names the entry."""
    entry = catalogue()[key]
    try:
        return report(entry.make(), entry.architecture)
    except Exception as error:
        raise RuntimeError(f"{key} cannot be compiled: {error}") from error
