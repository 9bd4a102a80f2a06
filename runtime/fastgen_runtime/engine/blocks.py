"""The pool of KV blocks: who holds which, what is in them, and never more than there are.

A full block is known by the digest of its tokens and of all before them, as in a hash chain. A
block whose content is known keeps it after its last holder is gone, until the memory is needed.
"""

import hashlib
from array import array
from collections.abc import Sequence
from typing import Final

NO_PARENT: Final = bytes(32)
"""Where chains begin that every request may share."""


class BlocksCorruptedError(Exception):
    """The pool's books do not balance: a defect, never a client's doing."""


def blocks_for(num_tokens: int, block_size: int) -> int:
    """Blocks that hold `num_tokens` positions."""
    return -(-num_tokens // block_size)


def chain_start(group: str) -> bytes:
    """Where the chains of a group begin that shares with nobody else."""
    return hashlib.blake2b(group.encode(), digest_size=32, person=b"group").digest()


def chain_digest(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """The digest of a block of `token_ids` (64-bit integers) after the block `parent`.

    BLAKE2b with 256 bits: nobody can make two contents of the same digest, so equal digests are
    equal contents, and no prompt can be made that reads another's blocks.
    """
    return hashlib.blake2b(parent + array("q", token_ids).tobytes(), digest_size=32).digest()


class BlockPool:
    """Ref-counted blocks. A block is free when nobody refers to it.

    References, not ownership: requests with a common prefix hold the same blocks. A free block is
    blank, or idle: with a content that is known, and taken for something else only when there is
    no blank one left, the longest idle first.
    """

    __slots__ = ("_blank", "_cached", "_digests", "_idle", "_references", "block_size")

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"a pool of {num_blocks} blocks of {block_size} tokens holds nothing")
        self.block_size = block_size
        self._references = [0] * num_blocks
        self._digests: list[bytes | None] = [None] * num_blocks
        self._cached: dict[bytes, int] = {}
        # A stack, so that the blocks freed last, whose memory is warm, are used first.
        self._blank = list(range(num_blocks - 1, -1, -1))
        # A dict keeps its order: the block that has been idle for longest is the first one.
        self._idle: dict[int, None] = {}

    @property
    def num_blocks(self) -> int:
        return len(self._references)

    @property
    def num_free(self) -> int:
        return len(self._blank) + len(self._idle)

    def num_references(self, block_id: int) -> int:
        """How many block tables hold the block."""
        return self._references[block_id]

    def find(self, digest: bytes) -> int | None:
        """The block with this content, if there is one."""
        return self._cached.get(digest)

    def match(self, digests: Sequence[bytes], most: int) -> tuple[int, ...]:
        """The blocks of the longest known beginning of a chain, at most `most`."""
        found: list[int] = []
        for index in range(min(most, len(digests))):
            block_id = self._cached.get(digests[index])
            if block_id is None:
                break
            found.append(block_id)
        return tuple(found)

    def reserve(self, count: int) -> list[int] | None:
        """Takes `count` free blocks, or nothing at all when there are fewer."""
        if count > self.num_free:
            return None
        taken = [self._blank.pop() if self._blank else self._evict() for _ in range(count)]
        for block_id in taken:
            self._references[block_id] = 1
        return taken

    def share(self, block_ids: Sequence[int]) -> None:
        """Adds a reference to blocks that somebody holds or whose content is known."""
        for block_id in block_ids:
            if self._references[block_id] < 1 and block_id not in self._idle:
                raise BlocksCorruptedError(f"block {block_id} is blank and cannot be shared")
        for block_id in block_ids:
            self._idle.pop(block_id, None)
            self._references[block_id] += 1

    def publish(self, block_id: int, digest: bytes) -> None:
        """Notes that a held block is full and computed; the first block of a content stays it."""
        if self._references[block_id] < 1 or self._digests[block_id] is not None:
            raise BlocksCorruptedError(f"block {block_id} is free or has been published before")
        if digest not in self._cached:
            self._cached[digest] = block_id
            self._digests[block_id] = digest

    def forget(self, block_ids: Sequence[int]) -> None:
        """Held blocks have no known content any more: nobody else finds them."""
        for block_id in block_ids:
            digest = self._digests[block_id]
            if digest is not None:
                del self._cached[digest]
                self._digests[block_id] = None

    def release(self, block_ids: Sequence[int]) -> None:
        """Drops a reference to each; the table's tail becomes free, and is lost, first."""
        for block_id in reversed(block_ids):
            if self._references[block_id] < 1:
                raise BlocksCorruptedError(f"block {block_id} was released twice")
            self._references[block_id] -= 1
            if self._references[block_id] == 0:
                if self._digests[block_id] is None:
                    self._blank.append(block_id)
                else:
                    self._idle[block_id] = None

    def check(self, holders: Sequence[Sequence[int]]) -> None:
        """Raises BlocksCorruptedError unless the block tables `holders` explain every reference."""
        expected = [0] * self.num_blocks
        for block_ids in holders:
            for block_id in block_ids:
                expected[block_id] += 1
        if expected != self._references:
            raise BlocksCorruptedError("references and block tables differ")
        free = sorted([*self._blank, *self._idle])
        if len(set(free)) < len(free):
            raise BlocksCorruptedError("a block is free twice")
        if free != [i for i, count in enumerate(expected) if count == 0]:
            raise BlocksCorruptedError("the free blocks are not those without a reference")
        if any(self._digests[i] is not None for i in self._blank):
            raise BlocksCorruptedError("a blank block has a content")
        if any(self._digests[i] is None for i in self._idle):
            raise BlocksCorruptedError("an idle block has no content")
        known = {digest: i for i, digest in enumerate(self._digests) if digest is not None}
        if known != self._cached:
            raise BlocksCorruptedError("contents and blocks differ")

    def _evict(self) -> int:
        """Forgets the content of the block that has been idle for longest."""
        block_id = next(iter(self._idle))
        del self._idle[block_id]
        digest = self._digests[block_id]
        if digest is None:
            raise BlocksCorruptedError(f"block {block_id} is idle and has no content")
        del self._cached[digest]
        self._digests[block_id] = None
        return block_id
