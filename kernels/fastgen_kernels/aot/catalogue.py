"""All entries of the budget."""

from collections.abc import Iterable, Mapping
from itertools import chain

from fastgen_kernels.aot.entry import Entry


def catalogue() -> Mapping[str, Entry]:
    """By key, in the order of the table."""
    entries: Iterable[Entry] = chain()
    return {entry.key: entry for entry in entries}
