"""One call as a JSON object: `{"name": …, "arguments": {…}}`."""

from collections.abc import Generator
from typing import Any, Final

import msgspec

from fastgen_runtime.text.tools.source import Arguments, CallStart, NoCallError, Say, Source

_ARGUMENTS: Final = ("arguments", "parameters")


def read_call(
    source: Source, at: int, say: Say, names: frozenset[str] | None = None
) -> Generator[None, None, int]:
    """The place behind the call that begins at `at`.

    It is certain once its name is known and its arguments begin; before that nothing is told or
    cut, and NoCallError is raised for what is none. What goes wrong later ends the call. names: the
    functions that there are; None takes any name.
    """
    call = _Call(source, say, names)
    try:
        return (yield from call.read(at))
    except NoCallError as wrong:
        if not call.is_certain:
            raise
        return wrong.at


class _Call:
    __slots__ = ("_arguments", "_name", "_names", "_say", "_source", "is_certain")

    def __init__(self, source: Source, say: Say, names: frozenset[str] | None) -> None:
        self._source = source
        self._say = say
        self._names = names
        self._name: str | None = None
        self._arguments: str | None = None
        self.is_certain = False

    def read(self, at: int) -> Generator[None, None, int]:
        source = self._source
        at = yield from source.literal(at, "{")
        mark = ""
        while mark != "}":
            at = yield from self._read_member(at)
            at = yield from source.blanks(at)
            mark = source.text[at : at + 1]
            if mark not in (",", "}"):
                raise NoCallError(at)
            at += 1
        if self._arguments is None:
            self._arguments = "{}"  # a function without parameters
        self._tell_whole(at)
        return at

    def _read_member(self, at: int) -> Generator[None, None, int]:
        source = self._source
        at = yield from source.blanks(at)
        if source.text[at : at + 1] != '"':
            raise NoCallError(at)
        end = yield from source.value(at)
        key = _decoded(source.text[at:end])
        at = yield from source.blanks(end)
        at = yield from source.literal(at, ":")
        at = yield from source.blanks(at)
        if at == len(source.text):
            raise NoCallError(at)
        if key in _ARGUMENTS and self._name is not None and source.text[at] == "{":
            return (yield from self._stream(at))
        end = yield from source.value(at)
        self._note(key, source.text[at:end], at)
        return end

    def _stream(self, at: int) -> Generator[None, None, int]:
        if self.is_certain or self._name is None:
            return (yield from self._source.value(at))
        self.is_certain = True
        self._arguments = ""
        self._say(CallStart(self._name))
        self._source.cut(at)
        return (yield from self._source.value(0, self._say))

    def _note(self, key: Any, text: str, at: int) -> None:
        if self.is_certain:
            return
        if key == "name":
            name = _decoded(text)
            if not isinstance(name, str) or (self._names is not None and name not in self._names):
                raise NoCallError(at)
            self._name = name
        elif key in _ARGUMENTS:
            self._arguments = _as_object(text)
            if self._arguments is None:
                raise NoCallError(at)

    def _tell_whole(self, at: int) -> None:
        """The arguments came before the name, as a text, or not at all."""
        if self.is_certain:
            return
        if self._name is None or self._arguments is None:
            raise NoCallError(at)
        self.is_certain = True
        self._say(CallStart(self._name))
        self._say(Arguments(self._arguments))


def _decoded(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def _as_object(text: str) -> str | None:
    """The arguments as an object's JSON; None for what is none. Some models write it in a text."""
    value = _decoded(text)
    if isinstance(value, str):
        text, value = value, _decoded(value)
    if value is None and text == "null":
        return "{}"
    return text if isinstance(value, dict) else None
