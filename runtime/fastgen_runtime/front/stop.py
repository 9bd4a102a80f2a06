"""Stop strings in streamed text: found across token borders, and never shown."""

from collections.abc import Sequence


class StopStrings:
    """Text goes in, text that is safe to show comes out.

    The match that is complete first wins, the longer one of two; so the result does not depend on
    how the text is cut into pieces.
    """

    __slots__ = ("_held", "_stops", "matched")

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str, may_match: bool = True) -> str:
        """The text that no stop string can begin in any more; nothing after a match.

        may_match: False lets pass what is complete with this text.
        """
        if self.matched is not None or not text:
            return ""
        num_old = len(self._held)
        self._held += text
        if may_match and self._find(num_old):
            return self.flush()
        num_shown = self._first_possible_start()
        shown, self._held = self._held[:num_shown], self._held[num_shown:]
        return shown

    def flush(self) -> str:
        """What was held back, at the answer's end."""
        shown, self._held = self._held, ""
        return shown

    def _find(self, num_old: int) -> bool:
        """Cuts the text before the first match that ends in what is new, if there is one."""
        matches = [
            (start + len(stop), start, stop)
            for stop in self._stops
            if (start := self._held.find(stop, max(0, num_old - len(stop) + 1))) >= 0
        ]
        if not matches:
            return False
        _, start, self.matched = min(matches)
        self._held = self._held[:start]
        return True

    def _first_possible_start(self) -> int:
        """Where the longest end of the text begins with which a stop string begins."""
        held = self._held
        first = len(held)
        for stop in self._stops:
            start = held.find(stop[0], max(0, len(held) - len(stop) + 1), first)
            while start >= 0:
                if stop.startswith(held[start:]):
                    first = start
                    break
                start = held.find(stop[0], start + 1, first)
        return first
