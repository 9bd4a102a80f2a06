"""What one leader of the autoscaler takes over from the one before, and leaves to the next."""

import asyncio
import logging

import httpx2
from lightkube import ApiError

from fastgen_balancer.deployment_access import Deployment
from fastgen_balancer.lease import Leadership
from fastgen_balancer.memo import Memo, is_due, write
from fastgen_balancer.memo_store import MemoStore
from fastgen_balancer.term import State, begin

log = logging.getLogger(__name__)


class Heritage:
    """Invariant: only the leader of the term in which a memory was taken over leaves its own."""

    def __init__(self, leadership: Leadership, store: MemoStore) -> None:
        self._leadership = leadership
        self._store = store
        self._term = 0
        self._left: Memo | None = None
        self._left_at = 0.0
        self._state: State | None = None

    @property
    def is_own(self) -> bool:
        """Whether nobody else can have led since it was taken over."""
        return self._term == self._leadership.terms

    async def take(self, deployment: Deployment, now: float) -> State:
        """The state with which a new leader begins; raises lightkube's errors."""
        term, decided_at = self._leadership.terms, self._leadership.decided_at
        self._left = self._state = None
        async with asyncio.timeout(self._leadership.write_seconds):
            memo = await self._store.take()
        self._term = term
        return begin(deployment, memo, now, decided_at)

    async def decided(self, state: State, now: float) -> None:
        """After a decision: what the next leader must know is kept; without it that one's memory
        ends at the decision before."""
        if not self.is_own:
            return
        self._state = state
        if is_due(self._left, self._left_at, Memo(state.mode, state.memory), now):
            try:
                await self.leave()
            except (ApiError, httpx2.HTTPError, TimeoutError) as error:
                log.warning("the memory could not be kept", extra={"error": type(error).__name__})
                return
            self._left_at = now
        if self.is_own:
            self._leadership.decided_at = now

    async def leave(self) -> None:
        """Keeps the latest memory; raises lightkube's errors."""
        if self._state is None or not self.is_own or not self._leadership.leads:
            return
        memo = Memo(self._state.mode, self._state.memory)
        async with asyncio.timeout(self._leadership.write_seconds):
            await self._store.leave(write(memo))
        self._left = memo
