"""Series in promtool's notation, with a sample every 15 seconds."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

MINUTE: Final = 4
"""Samples of a minute."""
HOUR: Final = 60 * MINUTE


@dataclass(frozen=True, slots=True)
class Phase:
    """So many samples during which counters grow at these paces."""

    samples: int
    per_minute: Mapping[str, float]


def counter(phases: Iterable[Phase], name: str) -> str:
    """A counter that grows at the pace that each phase gives it; at none where it gives none."""
    value, parts = 0.0, []
    for phase in phases:
        step = phase.per_minute.get(name, 0.0) / MINUTE
        parts.append(f"{value:.9g}+{step:.9g}x{phase.samples - 1}")
        value += step * phase.samples
    return " ".join(parts)


def gauge(value: float, samples: int) -> str:
    """A gauge that stays."""
    return f"{value:g}x{samples}"
