"""A model of how long a GPU takes for the memory traffic of a launch, CTA by CTA.

Not a measurement: CTAs that run at the same time share their multiprocessor's and the device's
bandwidth. It compares ways of dividing work, and finds CTAs that all others wait for.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Machine:
    """An H200's copy bandwidth, and what one CTA and one multiprocessor of it can take of that.

    item_seconds: before an item's first bytes arrive. merge_seconds: of a second, short launch.
    """

    multiprocessors: int = 132
    ctas_per_multiprocessor: int = 3
    cta_bytes_per_second: float = 45e9
    multiprocessor_bytes_per_second: float = 75e9
    bytes_per_second: float = 4.3e12
    item_seconds: float = 0.7e-6
    launch_seconds: float = 1.3e-6
    merge_seconds: float = 2.8e-6


H200 = Machine()


def seconds(ctas: Sequence[Floats], partial_bytes: float, machine: Machine = H200) -> float:
    """Of a launch, and of its merge where it writes partial results.

    ctas: bytes of each item of each CTA, in the order in which the GPU starts them.
    partial_bytes: written by the launch and read by the merge.
    """
    total = machine.launch_seconds + _makespan(ctas, machine)
    if partial_bytes:
        total += machine.merge_seconds + 2 * partial_bytes / machine.bytes_per_second
    return total


def floor_seconds(num_bytes: float, machine: Machine = H200) -> float:
    """Of reading so much at the whole bandwidth."""
    return num_bytes / machine.bytes_per_second


def _makespan(ctas: Sequence[Floats], machine: Machine) -> float:
    """Each place on a multiprocessor takes the next CTA when its own has ended."""
    places = machine.multiprocessors * machine.ctas_per_multiprocessor
    where = np.arange(places) % machine.multiprocessors
    work = [(len(items) * machine.item_seconds, float(np.sum(items))) for items in ctas]
    # An item's wait and its bytes take turns; that the waits come first changes little.
    waits, remaining = np.zeros(places), np.zeros(places)
    busy = np.zeros(places, bool)
    begun, now = 0, 0.0
    while True:
        for place in np.nonzero(~busy)[0][: len(work) - begun]:
            waits[place], remaining[place] = work[begun]
            busy[place], begun = True, begun + 1
        if not busy.any():
            return now
        rates = _rates(busy & (waits <= 0), where, machine)
        ends = np.where(waits > 0, waits, np.inf)
        moving = rates > 0
        ends[moving] = remaining[moving] / rates[moving]
        step = float(ends[busy].min())
        now += step
        waiting = waits > 0
        waits[waiting] -= step
        waits[np.abs(waits) < 1e-12] = 0
        remaining -= rates * step
        busy &= ~((waits <= 0) & (remaining < 1e-3))


def _rates(moving: NDArray[np.bool_], where: NDArray[np.int64], machine: Machine) -> Floats:
    """Bytes per second of each place."""
    together = np.bincount(where[moving], minlength=machine.multiprocessors)
    share = machine.multiprocessor_bytes_per_second / np.maximum(1, together)[where]
    rates = np.where(moving, np.minimum(machine.cta_bytes_per_second, share), 0.0)
    total = float(rates.sum())
    if total > machine.bytes_per_second:
        rates *= machine.bytes_per_second / total
    return rates
