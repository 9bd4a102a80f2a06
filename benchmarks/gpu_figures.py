"""What `gpu.py` finds: figures beside their aims, sentences about what went wrong, one table."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Final

MORE: Final = ">="
LESS: Final = "<="
_RESULTS: Final = ("checks", "step")
"""Parts whose aims are about what is computed, not how fast."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table.

    floor: what the value could be at best, in its unit, by what was measured of this GPU. aim: what
    it is held to; None: it stands for comparison.
    """

    part: str
    case: str
    name: str
    value: float
    unit: str
    floor: float | None = None
    aim: tuple[str, float] | None = None

    @property
    def is_met(self) -> bool | None:
        """Whether the aim is reached; None: there is none. No number reaches none."""
        if self.aim is None:
            return None
        way, limit = self.aim
        return self.value >= limit if way == MORE else self.value <= limit


@dataclass(frozen=True, slots=True)
class Trouble:
    """What could not be measured, and why."""

    part: str
    case: str
    sentence: str


def table(figures: Sequence[Figure]) -> str:
    """All figures as text."""
    rows = [("part", "case", "figure", "value", "floor", "aim", "")]
    for each in figures:
        floor = "" if each.floor is None else _short(each.floor)
        aim = f"{each.aim[0]} {each.aim[1]:g}" if each.aim else ""
        met = {None: "", True: "met", False: "MISSED"}[each.is_met]
        value = f"{_short(each.value)} {each.unit}".rstrip()
        rows.append((each.part, each.case, each.name, value, floor, aim, met))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def sentences(troubles: Sequence[Trouble]) -> str:
    """One line each."""
    return "\n".join(f"{each.part}, {each.case}: {each.sentence}" for each in troubles)


def as_json(figures: Sequence[Figure], troubles: Sequence[Trouble]) -> dict[str, Any]:
    """For the file; the aims with their verdicts."""
    return {
        "figures": [
            {
                "part": each.part,
                "case": each.case,
                "figure": each.name,
                "value": each.value if isfinite(each.value) else None,
                "unit": each.unit,
                "floor": each.floor,
                "aim": each.aim,
                "met": each.is_met,
            }
            for each in figures
        ],
        "troubles": [
            {"part": each.part, "case": each.case, "sentence": each.sentence} for each in troubles
        ],
    }


def exit_code(figures: Sequence[Figure], troubles: Sequence[Trouble]) -> int:
    """1 when a result is wrong or a part could not be measured; an aim of speed that is missed is a
    finding, no failure, and so is a peer that is not there."""
    wrong = any(each.part in _RESULTS and each.is_met is False for each in figures)
    return int(wrong or any(each.part != "peers" for each in troubles))


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
