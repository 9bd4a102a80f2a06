"""What balancer pods tell one another of prompts that crash replicas.

A pod with news calls the others, and they come and read. The call carries nothing, so a forged one
costs a look; what is read comes from the addresses that the API server gives of the deployment's
balancer pods. Times go as seconds before or after now, since no two pods share a clock.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Annotated, Final

import httpx2
import msgspec

from fastgen_balancer.peers import QUARANTINE_PATH, Peer, Peers
from fastgen_balancer.quarantine import MOST_KEYS, Knowledge, Quarantine
from fastgen_balancer.suspicion import (
    LONGEST_SENTENCE_SECONDS,
    MOST_FORMS,
    ON_RECORD_SECONDS,
    Suspicion,
    Verdict,
    verdict_of,
)

RETRY_SECONDS: Final = 1.0
PAUSE_SECONDS: Final = 0.02
"""Between two rounds: the news of one crash, of all the requests that were there, are one."""
SPREAD_SECONDS: Final = 0.2
"""Longest wait for the others to know what a client is about to learn, and may send again."""
TOLD_SECONDS: Final = 3600.0
"""An older acquittal is no news to anybody."""
MOST_CRASHES: Final = 64
LOOK_SECONDS: Final = 0.5
"""Between two looks at which pods there are."""

Key = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
Name = Annotated[str, msgspec.Meta(max_length=253)]
Ago = Annotated[float, msgspec.Meta(ge=0, le=ON_RECORD_SECONDS + LONGEST_SENTENCE_SECONDS)]
Left = Annotated[float, msgspec.Meta(ge=0, le=LONGEST_SENTENCE_SECONDS)]

log = logging.getLogger(__name__)


class Held(msgspec.Struct, frozen=True):
    """A Suspicion; seconds_left: of its sentence, below 0 when that has ended."""

    crashes: Annotated[tuple[tuple[Name, Ago], ...], msgspec.Meta(max_length=MOST_CRASHES)]
    forms: Annotated[tuple[Key, ...], msgspec.Meta(max_length=MOST_FORMS)]
    last_seconds_ago: Ago
    sentences: Annotated[int, msgspec.Meta(ge=0, le=64)]
    seconds_left: Annotated[float, msgspec.Meta(ge=-ON_RECORD_SECONDS, le=LONGEST_SENTENCE_SECONDS)]


class Told(msgspec.Struct, frozen=True):
    """A pod's Knowledge of one deployment's prompts, which are named by their keys in hex."""

    held: Annotated[dict[Key, Held], msgspec.Meta(max_length=MOST_KEYS)] = {}
    acquitted_seconds_ago: Annotated[dict[Key, Ago], msgspec.Meta(max_length=MOST_KEYS)] = {}
    undecided_seconds_left: Annotated[dict[Key, Left], msgspec.Meta(max_length=MOST_KEYS)] = {}
    trials: Annotated[dict[Key, Name], msgspec.Meta(max_length=MOST_KEYS)] = {}


def write(knowledge: Knowledge, now: float) -> Told:
    """In words that another pod understands; `now`: of this pod's clock."""
    held = {
        key.hex(): Held(
            tuple(sorted((name, max(0.0, now - at)) for name, at in known.crashes))[:MOST_CRASHES],
            tuple(form.hex() for form in sorted(known.forms)),
            max(0.0, now - known.last_at),
            known.sentences,
            known.until - now if known.sentences else 0.0,
        )
        for key, known in knowledge.suspicions.items()
        if verdict_of(known, now) is not Verdict.CLEAR
    }
    acquitted = {
        key.hex(): now - at
        for key, at in knowledge.acquitted.items()
        if 0 <= now - at <= TOLD_SECONDS
    }
    undecided = {
        key.hex(): until - now for key, until in knowledge.undecided.items() if until > now
    }
    return Told(held, acquitted, undecided, {k.hex(): v for k, v in knowledge.trials.items()})


def read(told: Told, now: float) -> Knowledge:
    """By this pod's clock, on which it is `now`."""
    suspicions = {
        bytes.fromhex(key): Suspicion(
            frozenset((name, now - ago) for name, ago in each.crashes),
            frozenset(bytes.fromhex(form) for form in each.forms),
            now - each.last_seconds_ago,
            each.sentences,
            now + each.seconds_left if each.sentences else 0.0,
        )
        for key, each in told.held.items()
    }
    return Knowledge(
        suspicions,
        {bytes.fromhex(key): now - ago for key, ago in told.acquitted_seconds_ago.items()},
        {bytes.fromhex(key): now + left for key, left in told.undecided_seconds_left.items()},
        {bytes.fromhex(key): name for key, name in told.trials.items()},
    )


class Share:
    """One pod's side of it, for the quarantines of all the deployments that it serves.

    With the others away each pod knows its own crashes alone, and asks again every second.
    """

    def __init__(self, quarantines: Mapping[str, Quarantine], clock: Callable[[], float]) -> None:
        """`quarantines`: by their deployments; `clock`: theirs.

        Those that come later have to call `tell` when they have news.
        """
        self._quarantines = quarantines
        self._clock = clock
        self._peers: Peers | None = None
        self._lines: dict[Peer, _Line] = {}
        for quarantine in quarantines.values():
            quarantine.on_news = self.tell

    def knowledge(self) -> bytes:
        """For the others to read: JSON, by deployment."""
        now = self._clock()
        told = {name: write(each.knowledge(), now) for name, each in self._quarantines.items()}
        return msgspec.json.encode(told)

    async def heed(self, host: str | None) -> None:
        """Reads what the pod at this address has to tell, or all where it is not known."""
        lines = self._lines.values()
        called = [line for line in lines if line.peer.host == host] or lines
        await asyncio.gather(*(line.read() for line in called))

    async def spread(self) -> None:
        """Returns when the others know all that this pod does, or after SPREAD_SECONDS."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SPREAD_SECONDS):
                await asyncio.gather(*(line.call() for line in self._lines.values()))

    async def run(self, peers: Peers) -> None:
        """Keeps to the pods that there are, until it is cancelled."""
        tasks: dict[Peer, asyncio.Task[None]] = {}
        try:
            while True:
                known = {replace(peer, serves=True) for peer in peers.known}
                for peer in tasks.keys() - known:
                    tasks.pop(peer).cancel()
                    del self._lines[peer]
                for peer in known - tasks.keys():
                    line = self._lines[peer] = _Line(peers, peer, self._hear)
                    tasks[peer] = asyncio.create_task(line.run(), name=f"quarantine {peer.name}")
                for quarantine in self._quarantines.values():
                    quarantine.keep_to(peer.name for peer in known)
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            self._lines.clear()
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)

    def tell(self) -> None:
        """Calls the others, since there is something to know."""
        for line in self._lines.values():
            line.news.set()

    def _hear(self, peer: Peer, data: bytes) -> None:
        """Raises msgspec.MsgspecError."""
        now = self._clock()
        for name, told in msgspec.json.decode(data, type=dict[str, Told]).items():
            if (quarantine := self._quarantines.get(name)) is not None:
                quarantine.hear(peer.name, read(told, now))


class _Line:
    """To one other pod. Calls that come close together are one, and so are looks."""

    def __init__(self, peers: Peers, peer: Peer, hear: Callable[[Peer, bytes], None]) -> None:
        self.peer = peer
        self.news = asyncio.Event()
        self._peers = peers
        self._hear = hear
        self._reading = asyncio.Lock()
        self._asked = 0
        self._read_for = 0

    async def run(self) -> None:
        """Reads once, then calls whenever there is news, until it is cancelled."""
        while not await self.read():  # noqa: ASYNC110 - it may begin to listen at any time
            await asyncio.sleep(RETRY_SECONDS)
        while True:
            await self.news.wait()
            self.news.clear()
            if not await self.call():
                self.news.set()
                await asyncio.sleep(RETRY_SECONDS)
            await asyncio.sleep(PAUSE_SECONDS)

    async def call(self) -> bool:
        """Whether the other pod has come and read."""
        return await self._try(self._peers.post(self.peer, QUARANTINE_PATH)) is not None

    async def read(self) -> bool:
        """Whether its knowledge, as of this call or later, has been heard."""
        self._asked = asked = self._asked + 1
        async with self._reading:
            if self._read_for >= asked:
                return True
            begun_for = self._asked
            data = await self._try(self._peers.get(self.peer, QUARANTINE_PATH))
            if data is None:
                return False
            try:
                self._hear(self.peer, data)
            except msgspec.MsgspecError as error:
                log.warning(
                    "a peer does not read", extra={"peer": self.peer.name, "error": str(error)}
                )
                return False
            self._read_for = begun_for
            return True

    async def _try(self, answer: Awaitable[bytes]) -> bytes | None:
        try:
            return await answer
        except (httpx2.HTTPError, TimeoutError) as error:
            log.debug("a peer is away", extra={"peer": self.peer.name, "error": repr(error)})
            return None
