"""How many answers a replica has open, and who waits for one of them to end."""

import asyncio
from collections import deque
from typing import Final

from fastgen_runtime.front.generation import ErrorKind, RequestError, invalid

MADE_PER_PLACE: Final = 8
"""Few clients that do not read shut out nobody, and many do not take all memory."""


class Places:
    """Each choice takes a place until its last token is made, taken by its client or not.

    Answers that are made and not taken are bounded by themselves: there are at most MADE_PER_PLACE
    times as many of them as places, and behind that nobody gets a place until their clients have
    read, or are cut off.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._most_made = MADE_PER_PLACE * most
        self._num_taken = 0
        self._num_made = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def take(self, num_choices: int) -> None:
        """Raises RequestError where so many are not free, or others wait for them."""
        self.check(num_choices)
        if self._num_made >= self._most_made:
            raise RequestError(
                ErrorKind.FULL,
                f"{self._num_made} answers of the {self._most_made} that this replica keeps wait "
                "for clients that do not read them",
            )
        if self._waiting or not self._has_room(num_choices):
            of = f", and this one asks for {num_choices}" if num_choices > 1 else ""
            raise RequestError(
                ErrorKind.FULL,
                f"{self._num_taken} requests are open of the {self._most} that this replica "
                f"takes{of}",
            )
        self._num_taken += num_choices

    def check(self, num_choices: int) -> None:
        """Raises RequestError where there will never be as many."""
        if num_choices > self._most:
            raise invalid(
                "n", f"is {num_choices}, and this replica takes at most {self._most} choices"
            )

    async def wait(self, num_choices: int) -> None:
        """Takes places as soon as they are free, in the order of calls."""
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((num_choices, granted))
        self._grant()
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self._num_taken -= num_choices
            self._grant()
            raise

    def make(self) -> None:
        """A choice has its last token."""
        self._num_taken -= 1
        self._num_made += 1
        self._grant()

    def leave(self, num_open: int, num_made: int) -> None:
        """A request is gone, with choices that were not complete and such that were."""
        self._num_taken -= num_open
        self._num_made -= num_made
        self._grant()

    def _has_room(self, num_choices: int) -> bool:
        is_bounded = self._num_made < self._most_made
        return is_bounded and self._num_taken + num_choices <= self._most

    def _grant(self) -> None:
        while self._waiting:
            num_choices, granted = self._waiting[0]
            if not granted.done():
                if not self._has_room(num_choices):
                    return
                self._num_taken += num_choices
                granted.set_result(None)
            self._waiting.popleft()
