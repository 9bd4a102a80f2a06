"""One exposition of many registries, in which each family of metrics comes once."""

from collections.abc import Iterator, Sequence
from typing import cast

from prometheus_client import CollectorRegistry, Metric, generate_latest


def expose(registries: Sequence[CollectorRegistry]) -> bytes:
    """The registries' metrics as Prometheus reads them; no two may have the same series."""
    # Of a registry it needs no more than this.
    return generate_latest(cast(CollectorRegistry, _Together(registries)))


class _Together:
    def __init__(self, registries: Sequence[CollectorRegistry]) -> None:
        self._registries = registries

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for registry in self._registries:
            for family in registry.collect():
                known = families.get(family.name)
                if known is None:
                    families[family.name] = family
                else:
                    known.samples.extend(family.samples)
        yield from families.values()
