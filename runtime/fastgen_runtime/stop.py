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

    def push(self, text: str) -> str:
        """The text that no stop string can begin in any more; nothing after a match."""
        if self.matched is not None:
            return ""
        if not self._stops:
            return text
        self._held += text
        matches = [
            (start + len(stop), start, stop)
            for stop in self._stops
            if (start := self._held.find(stop)) >= 0
        ]
        if matches:
            _, start, self.matched = min(matches)
            shown, self._held = self._held[:start], ""
            return shown
        keep = self._length_of_possible_start()
        shown, self._held = self._held[: len(self._held) - keep], self._held[-keep:] if keep else ""
        return shown

    def flush(self) -> str:
        """What was held back, at the answer's end."""
        shown, self._held = self._held, ""
        return shown

    def _length_of_possible_start(self) -> int:
        """Length of the longest end of the text with which a stop string begins."""
        longest = min(len(self._held), max(map(len, self._stops)) - 1)
        for length in range(longest, 0, -1):
            end = self._held[-length:]
            if any(stop.startswith(end) for stop in self._stops):
                return length
        return 0
