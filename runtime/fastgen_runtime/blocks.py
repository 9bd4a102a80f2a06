"""The pool of KV blocks: who holds which, and never more than there are."""

from collections.abc import Sequence


class BlocksCorruptedError(Exception):
    """The pool's books do not balance: a defect, never a client's doing."""


def blocks_for(num_tokens: int, block_size: int) -> int:
    """Blocks that hold `num_tokens` positions."""
    return -(-num_tokens // block_size)


class BlockPool:
    """Ref-counted blocks. A block is free when nobody refers to it.

    References, not ownership: requests with a common prefix can hold the same block.
    """

    __slots__ = ("_free", "_references", "block_size")

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"a pool of {num_blocks} blocks of {block_size} tokens holds nothing")
        self.block_size = block_size
        self._references = [0] * num_blocks
        # A stack, so that the blocks freed last, whose memory is warm, are used first.
        self._free = list(range(num_blocks - 1, -1, -1))

    @property
    def num_blocks(self) -> int:
        return len(self._references)

    @property
    def num_free(self) -> int:
        return len(self._free)

    def reserve(self, count: int) -> list[int] | None:
        """Takes `count` free blocks, or nothing at all when there are fewer."""
        if count > len(self._free):
            return None
        taken = [self._free.pop() for _ in range(count)]
        for block_id in taken:
            self._references[block_id] = 1
        return taken

    def share(self, block_ids: Sequence[int]) -> None:
        """Adds a reference to blocks that somebody holds."""
        for block_id in block_ids:
            if self._references[block_id] < 1:
                raise BlocksCorruptedError(f"block {block_id} is free and cannot be shared")
        for block_id in block_ids:
            self._references[block_id] += 1

    def release(self, block_ids: Sequence[int]) -> None:
        """Drops a reference to each; the table's tail becomes free first."""
        for block_id in reversed(block_ids):
            if self._references[block_id] < 1:
                raise BlocksCorruptedError(f"block {block_id} was released twice")
            self._references[block_id] -= 1
            if self._references[block_id] == 0:
                self._free.append(block_id)

    def check(self, holders: Sequence[Sequence[int]]) -> None:
        """Raises BlocksCorruptedError unless the block tables `holders` explain every reference."""
        expected = [0] * self.num_blocks
        for block_ids in holders:
            for block_id in block_ids:
                expected[block_id] += 1
        if expected != self._references:
            raise BlocksCorruptedError("references and block tables differ")
        free = set(self._free)
        if len(free) != len(self._free):
            raise BlocksCorruptedError("a block is free twice")
        if free != {i for i, count in enumerate(expected) if count == 0}:
            raise BlocksCorruptedError("the free blocks are not those without a reference")
