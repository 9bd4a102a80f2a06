"""Clients that do not read what is sent to them."""

from typing import Final

TAKE_SECONDS: Final = 60.0
"""A client that takes nothing for so long is cut off: what it is kept is others' memory."""


class Untaken:
    """What waits to be sent on one connection, looked at from time to time."""

    __slots__ = ("_num_bytes", "_since")

    def __init__(self) -> None:
        self._num_bytes = 0
        self._since = 0.0

    def is_stuck(self, num_bytes: int, now: float) -> bool:
        """Whether nothing was taken for too long; num_bytes: that wait now. now: in seconds.

        Of what only grows nothing was taken: who sends waits until there is little left.
        """
        if not self._num_bytes or num_bytes < self._num_bytes:
            self._since = now
        self._num_bytes = num_bytes
        return num_bytes > 0 and now - self._since > TAKE_SECONDS
