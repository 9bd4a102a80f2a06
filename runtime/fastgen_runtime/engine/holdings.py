"""The blocks that running requests hold: found in the cache, reserved, published, given back."""

from collections import Counter
from collections.abc import Iterable, Sequence

from fastgen_runtime.engine.blocks import BlockPool, BlocksCorruptedError, blocks_for
from fastgen_runtime.engine.request import Request


class Holdings:
    """Keeps `Request.block_ids`, and the counts of them, in step with the pool.

    hits: how many running requests found each block in the cache.
    """

    def __init__(self, blocks: BlockPool) -> None:
        self.blocks = blocks
        self.hits: Counter[int] = Counter()

    def begin(self, request: Request, block_ids: Sequence[int]) -> None:
        """The request starts with blocks that the cache has."""
        self.blocks.share(block_ids)
        self.hits.update(block_ids)
        request.block_ids = list(block_ids)
        request.num_hits = request.num_published = len(block_ids)
        request.num_computed = len(block_ids) * self.blocks.block_size

    def reserve(self, request: Request, end: int) -> None:
        """Room for its tokens up to `end`; raises RuntimeError where the plan did not see to it."""
        missing = blocks_for(end, self.blocks.block_size) - len(request.block_ids)
        if missing > 0:
            reserved = self.blocks.reserve(missing)
            if reserved is None:
                raise RuntimeError("the plan gave away blocks that are not there")
            request.block_ids.extend(reserved)

    def publish(self, request: Request) -> None:
        """Makes the blocks known that are full and computed now."""
        full = min(request.num_computed // self.blocks.block_size, len(request.digests))
        while request.num_published < full:
            index = request.num_published
            self.blocks.publish(request.block_ids[index], request.digests[index])
            request.num_published += 1

    def spoil(self, request: Request) -> None:
        """Nobody finds its blocks any more: what is in them may be wrong."""
        self.blocks.forget(request.block_ids)

    def release(self, request: Request) -> None:
        """Gives all back; the request has computed nothing then."""
        for block_id in request.block_ids[: request.num_hits]:
            self.hits[block_id] -= 1
            if not self.hits[block_id]:
                del self.hits[block_id]
        self.blocks.release(request.block_ids)
        request.block_ids = []
        request.num_computed = request.num_published = request.num_hits = 0

    def check(self, running: Iterable[Request]) -> None:
        """Raises BlocksCorruptedError unless each block is free or in a running request's table,
        and the hits are those that the running requests say."""
        requests = list(running)
        self.blocks.check([request.block_ids for request in requests])
        hits = Counter(i for one in requests for i in one.block_ids[: one.num_hits])
        if hits != self.hits:
            raise BlocksCorruptedError("the hits and the requests that found them differ")
