"""Text that is still coming, read by generators: each yields when it needs more.

So a parser reads as if the whole text were there, and how it was cut cannot change what it finds.
"""

import re
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Final

_BLANKS: Final = " \t\r\n"
_IN_STRING: Final = re.compile(r'["\\]')
_OUTSIDE_STRINGS: Final = re.compile(r'["{}\[\]]')
_AFTER_SCALAR: Final = re.compile(r"[,\]}\s]")


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of text that belongs to no call."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call of the named function begins; the pieces of its arguments follow."""

    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """A piece of the arguments' JSON, of the call that began last."""

    text: str


ToolEvent = Text | CallStart | Arguments
Say = Callable[[ToolEvent], None]


class NoCallError(Exception):
    """The text is no call. at: the place of the character that does not fit."""

    def __init__(self, at: int) -> None:
        super().__init__(at)
        self.at = at


class Source:
    """What of the text has come and is not done with. Places count from its beginning."""

    __slots__ = ("at_end", "has_said", "leading_blanks", "text")

    def __init__(self) -> None:
        self.text = ""
        self.at_end = False
        self.has_said = False
        self.leading_blanks = ""

    def cut(self, end: int) -> None:
        """Forgets the text before `end`."""
        self.text = self.text[end:]

    def blanks(self, at: int) -> Generator[None, None, int]:
        """The place of the first character from `at` on that is no blank; at the end behind it."""
        while True:
            while at < len(self.text) and self.text[at] in _BLANKS:
                at += 1
            if at < len(self.text) or self.at_end:
                return at
            yield

    def literal(self, at: int, literal: str) -> Generator[None, None, int]:
        """The place behind the literal, which has to stand at `at`; raises NoCallError."""
        while True:
            part = self.text[at : at + len(literal)]
            if part == literal:
                return at + len(literal)
            if not literal.startswith(part) or self.at_end:
                raise NoCallError(at)
            yield

    def value(self, at: int, say: Say | None = None) -> Generator[None, None, int]:
        """The place behind the JSON value that begins at `at`; raises NoCallError at the end.

        Brackets are counted and not told apart. say: is told the value, an object at place 0, as
        it comes, and what is told is cut off.
        """
        depth, in_string = 0, False
        if self.text[at] not in '{["':
            return (yield from self._scalar(at))
        while True:
            found = (_IN_STRING if in_string else _OUTSIDE_STRINGS).search(self.text, at)
            if found is None:
                at = max(at, len(self.text))
                at -= self._tell(len(self.text), say)
                if self.at_end:
                    raise NoCallError(at)
                yield
                continue
            at = found.end()
            match found.group():
                case "\\":
                    at += 1
                case '"':
                    in_string = not in_string
                case "{" | "[":
                    depth += 1
                case _:
                    depth -= 1
            if not depth and not in_string:
                return at - self._tell(at, say)

    def _scalar(self, at: int) -> Generator[None, None, int]:
        while (found := _AFTER_SCALAR.search(self.text, at)) is None:
            if self.at_end:
                raise NoCallError(at)
            yield
        return found.start()

    def _tell(self, end: int, say: Say | None) -> int:
        """Tells and cuts the text before `end`; how much was cut."""
        if say is None:
            return 0
        if end:
            say(Arguments(self.text[:end]))
            self.cut(end)
        return end

    def text_before(self, mark: str, say: Say) -> Generator[None, None, bool]:
        """Tells the text before the mark, which then stands at place 0; False at the text's end.

        Blanks before the first call belong to its format where no other text is there: they are
        kept in `leading_blanks`, in case it is none.
        """
        self.leading_blanks = ""
        while True:
            found = self.text.find(mark)
            end = found if found >= 0 else len(self.text) - self._length_of_start(mark)
            if self.has_said or self.text[:end].strip():
                self.say_text(end, say)
            elif found >= 0:
                self.leading_blanks = self.text[:end]
                self.cut(end)
            if found >= 0:
                return True
            if self.at_end:
                self.say_text(len(self.text), say)
                return False
            yield

    def all_text(self, say: Say) -> Generator[None, None, None]:
        """Tells whatever comes as text."""
        while True:
            self.say_text(len(self.text), say)
            if self.at_end:
                return
            yield

    def say_text(self, end: int, say: Say) -> None:
        """Tells and cuts the text before `end`."""
        if end > 0:
            say(Text(self.text[:end]))
            self.cut(end)
            self.has_said = True

    def _length_of_start(self, mark: str) -> int:
        """Length of the longest end of the text with which the mark begins."""
        longest = min(len(self.text), len(mark) - 1)
        return next((n for n in range(longest, 0, -1) if mark.startswith(self.text[-n:])), 0)


Parse = Callable[[Source, Say], Generator[None, None, None]]


class ToolParser:
    """One answer's text goes in, piece by piece.

    What looked like a call and is none comes out as text, letter for letter.
    """

    __slots__ = ("_events", "_parsing", "_source")

    def __init__(self, parse: Parse) -> None:
        self._events: list[ToolEvent] = []
        self._source = Source()
        self._parsing = parse(self._source, self._events.append)

    def push(self, text: str) -> list[ToolEvent]:
        """What is certain now."""
        self._source.text += text
        return self._go_on()

    def flush(self) -> list[ToolEvent]:
        """What was held back, at the answer's end."""
        self._source.at_end = True
        return self._go_on()

    def _go_on(self) -> list[ToolEvent]:
        next(self._parsing, None)
        events = self._events[:]
        self._events.clear()
        return events
