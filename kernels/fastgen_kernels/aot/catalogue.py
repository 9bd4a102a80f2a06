"""All entries of the budget."""

from collections.abc import Mapping
from functools import cache
from itertools import chain

from fastgen_kernels.aot import attention_entries, layer_entries, token_entries
from fastgen_kernels.aot.entry import Entry


@cache
def catalogue() -> Mapping[str, Entry]:
    """By key, in the order of the table; raises ValueError for a key that is there twice."""
    found: dict[str, Entry] = {}
    for entry in chain(
        attention_entries.entries(), layer_entries.entries(), token_entries.entries()
    ):
        if entry.key in found:
            raise ValueError(f"two entries are called {entry.key}")
        found[entry.key] = entry
    return found
