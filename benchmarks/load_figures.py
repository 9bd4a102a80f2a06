"""What `load.py` finds: figures, each beside its bar where the balancer is held to one."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from load_processes import Told

MORE: Final = ">="
LESS: Final = "<="


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table. direct: the same without a balancer, or with the way compared to."""

    section: str
    name: str
    value: float
    unit: str
    direct: float | None = None
    bar: tuple[str, float] | None = None

    @property
    def is_met(self) -> bool | None:
        """Whether the bar is reached; None: there is none."""
        if self.bar is None:
            return None
        way, limit = self.bar
        return self.value >= limit if way == MORE else self.value <= limit


def table(figures: Sequence[Figure]) -> str:
    """All figures as text."""
    rows = [("section", "figure", "value", "direct", "bar", "")]
    for each in figures:
        bar = f"{each.bar[0]} {each.bar[1]:g}" if each.bar else ""
        direct = "" if each.direct is None else f"{each.direct:,.3g}"
        met = {None: "", True: "met", False: "MISSED"}[each.is_met]
        rows.append(
            (each.section, each.name, f"{_short(each.value)} {each.unit}", direct, bar, met)
        )
    widths = [max(len(row[column]) for row in rows) for column in range(6)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def failed(told: Sequence[Told]) -> int:
    """Requests that did not end well, of several clients."""
    return sum(int(each["failed"]) for each in told)


def tokens_per_second(told: Sequence[Told]) -> float:
    """Tokens that several clients got at a time, per second."""
    return sum(float(each["tokens"]) / float(each["seconds"]) for each in told)


def worst(told: Sequence[Told], what: str, share: str) -> float:
    """A percentile of the client that has the larger one; `what`: a spread of the report."""
    return max(float(each[what][share]) for each in told)


def over_rounds(rounds: Sequence[Sequence[Told]], what: str, share: str) -> float:
    """The median round's `worst`."""
    return median(worst(told, what, share) for told in rounds)
