"""Whether Kopf's watch lives, and tells what the lists show."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from fastgen_api import names
from fastgen_operator.health import DEAF_LIMIT_SECONDS
from fastgen_operator.queue import Key

KOPFS_WATCH: Final = f"watcher for {names.PLURAL}."
"""How the names of Kopf's tasks begin that watch FastGenDeployments."""
LOOK_SECONDS: Final = 0.5


async def failure_of_kopf() -> BaseException:
    """Returns what has ended a watch of Kopf.

    Kopf logs it and goes on without: an error inside a watch, as an etcd without a leader makes it.
    """
    watches: set[asyncio.Task[object]] = set()
    while True:
        watches |= {each for each in asyncio.all_tasks() if each.get_name().startswith(KOPFS_WATCH)}
        for watch in watches:
            if watch.done() and not watch.cancelled() and (error := watch.exception()):
                return error
        await asyncio.sleep(LOOK_SECONDS)


@dataclass(frozen=True, slots=True)
class _Missed:
    version: int
    since: float


class Ears:
    """Compares the versions of FastGenDeployments that Kopf told with those that were listed."""

    def __init__(self) -> None:
        self._told: dict[Key, int] = {}
        self._missed: dict[Key, _Missed] = {}

    def tell(self, key: Key, version: int) -> None:
        """Kopf's watch told of a version."""
        self._told[key] = max(version, self._told.get(key, 0))

    def compare(self, listed: Mapping[Key, int], now: float) -> None:
        """A list showed these versions; what it does not show is forgotten."""
        self._told = {key: version for key, version in self._told.items() if key in listed}
        missed = {}
        for key, version in listed.items():
            told = self._told.get(key, 0)
            earlier = self._missed.get(key)
            if earlier and told < earlier.version:
                missed[key] = earlier
            elif told < version:
                missed[key] = _Missed(version, now)
        self._missed = missed

    def complaint(self, now: float) -> str:
        """What was missed for too long; empty: nothing."""
        for key, missed in self._missed.items():
            if now - missed.since > DEAF_LIMIT_SECONDS:
                return f"the watch of FastGenDeployments has missed {'/'.join(key)}"
        return ""
