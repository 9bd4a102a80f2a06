"""The formats in which models write calls, as parsers of text that is still coming."""

import re
from collections.abc import Generator
from typing import Final

from fastgen_runtime.text.tools.call import read_call
from fastgen_runtime.text.tools.source import CallStart, NoCallError, Parse, Say, Source

HERMES_BEGIN: Final = "<tool_call>"
HERMES_END: Final = "</tool_call>"
LLAMA_BEGIN: Final = "<|python_tag|>"
MISTRAL_BEGIN: Final = "[TOOL_CALLS]"
MISTRAL_ARGUMENTS: Final = "[ARGS]"
_MISTRAL_NAME: Final = re.compile(r"([\w.-]+)(?:\[CALL_ID\]\w*)?(?:\[ARGS\])?\s*(?=\{)")
_MISTRAL_NAME_SO_FAR: Final = re.compile(r"[\w.-]*(?:\[[A-Z_]*(?:\]\w*)?){0,2}\s*")


def parse_hermes(source: Source, say: Say) -> Generator[None, None, None]:
    """Hermes and Qwen: `<tool_call>{"name": …, "arguments": …}</tool_call>`, among text."""
    while (yield from source.text_before(HERMES_BEGIN, say)):
        try:
            at = yield from source.blanks(len(HERMES_BEGIN))
            at = yield from read_call(source, at, say)
        except NoCallError:
            _say_mark(source, HERMES_BEGIN, say)
            continue
        try:
            end = yield from source.blanks(at)
            at = yield from source.literal(end, HERMES_END)
        except NoCallError:
            pass  # the model forgot it
        yield from _cut_blanks(source, at)


def parse_mistral(source: Source, say: Say) -> Generator[None, None, None]:
    """Mistral: `[TOOL_CALLS]` before a list of calls, or before `name[ARGS]{…}`, after text."""
    while (yield from source.text_before(MISTRAL_BEGIN, say)):
        try:
            at = yield from source.blanks(len(MISTRAL_BEGIN))
            if source.text.startswith("[", at):
                at = yield from _read_list(source, at + 1, say)
            else:
                at = yield from _read_named(source, at, say)
        except NoCallError:
            _say_mark(source, MISTRAL_BEGIN, say)
            continue
        yield from _cut_blanks(source, at)


def llama_parser(names: frozenset[str]) -> Parse:
    """Llama 3: the whole answer is `{"name": …, "parameters": …}`, or several, with `;` between.

    names: the functions that there are; an object with another name is an answer like any.
    """

    def parse(source: Source, say: Say) -> Generator[None, None, None]:
        at = yield from source.blanks(0)
        try:
            at = yield from source.literal(at, LLAMA_BEGIN)
            at = yield from source.blanks(at)
        except NoCallError:
            pass  # it may be left out
        while True:
            try:
                at = yield from read_call(source, at, say, names)
            except NoCallError:
                yield from source.all_text(say)
                return
            yield from _cut_blanks(source, at)
            try:
                at = yield from source.literal(0, ";")
                at = yield from source.blanks(at)
            except NoCallError:
                at = 0

    return parse


def _read_list(source: Source, at: int, say: Say) -> Generator[None, None, int]:
    """Raises NoCallError where not even the first is a call."""
    at = yield from source.blanks(at)
    at = yield from read_call(source, at, say)
    while True:
        at = yield from source.blanks(at)
        if source.text.startswith("]", at):
            return at + 1
        try:
            following = yield from source.literal(at, ",")
            following = yield from source.blanks(following)
            at = yield from read_call(source, following, say)
        except NoCallError:
            return at


def _read_named(source: Source, at: int, say: Say) -> Generator[None, None, int]:
    while (found := _MISTRAL_NAME.match(source.text, at)) is None:
        if source.at_end or not _MISTRAL_NAME_SO_FAR.fullmatch(source.text, at):
            raise NoCallError(at)
        yield
    say(CallStart(found.group(1)))
    source.cut(found.end())
    try:
        return (yield from source.value(0, say))
    except NoCallError as wrong:
        return wrong.at


def _say_mark(source: Source, mark: str, say: Say) -> None:
    """A mark that begins no call is text, and what follows is read anew."""
    source.text = source.leading_blanks + source.text
    end = len(source.leading_blanks) + len(mark)
    source.say_text(len(source.text) if source.at_end else end, say)


def _cut_blanks(source: Source, at: int) -> Generator[None, None, None]:
    source.cut(at)
    at = yield from source.blanks(0)
    source.cut(at)
