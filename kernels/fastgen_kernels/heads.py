"""How many heads attention has, and how large they are."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Heads:
    """num_query: of the queries; each `group` of them shares one of the num_kv keys and values.

    size: dimensions of a head. Raises ValueError when the groups are not equal.
    """

    num_query: int
    num_kv: int
    size: int

    def __post_init__(self) -> None:
        if min(self.num_query, self.num_kv, self.size) < 1 or self.num_query % self.num_kv:
            raise ValueError(
                f"{self.num_query} query heads of size {self.size} cannot share "
                f"{self.num_kv} key/value heads equally"
            )

    @property
    def group(self) -> int:
        """Query heads that share a key/value head."""
        return self.num_query // self.num_kv

    def token_bytes(self, item_bytes: int) -> int:
        """Of one token's keys and values in one layer."""
        return 2 * self.num_kv * self.size * item_bytes
