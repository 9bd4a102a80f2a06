"""Which format a model writes calls in, told by its chat template."""

import re
import secrets
import string
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from fastgen_runtime.text.tools.parsers import (
    HERMES_BEGIN,
    HERMES_END,
    LLAMA_BEGIN,
    MISTRAL_ARGUMENTS,
    MISTRAL_BEGIN,
    llama_parser,
    parse_hermes,
    parse_mistral,
)
from fastgen_runtime.text.tools.source import ToolParser

_TOOLS_VARIABLE: Final = re.compile(r"\btools\b")
_LLAMA_ROLE: Final = re.compile(r"\bipython\b")
"""Llama 3 calls those so who tell what a call brought."""
_LETTERS_AND_DIGITS: Final = string.ascii_letters + string.digits


class ToolFormat(Enum):
    """A way to write calls."""

    HERMES = auto()
    LLAMA = auto()
    MISTRAL_LIST = auto()
    MISTRAL_NAMED = auto()

    @property
    def marks(self) -> tuple[str, ...]:
        """Texts that may be special tokens, and must be seen by the parser."""
        return _MARKS[self]

    def parser(self, names: frozenset[str]) -> ToolParser:
        """A parser for one answer; names: the functions that there are."""
        match self:
            case ToolFormat.HERMES:
                return ToolParser(parse_hermes)
            case ToolFormat.LLAMA:
                return ToolParser(llama_parser(names))
        return ToolParser(parse_mistral)

    def new_call_id(self) -> str:
        """Mistral's templates refuse ids that have not 9 letters and digits."""
        if self in (ToolFormat.MISTRAL_LIST, ToolFormat.MISTRAL_NAMED):
            return "".join(secrets.choice(_LETTERS_AND_DIGITS) for _ in range(9))
        return f"call_{secrets.token_hex(12)}"


_MARKS: Final = {
    ToolFormat.HERMES: (HERMES_BEGIN, HERMES_END),
    ToolFormat.LLAMA: (LLAMA_BEGIN,),
    ToolFormat.MISTRAL_LIST: (MISTRAL_BEGIN,),
    ToolFormat.MISTRAL_NAMED: (MISTRAL_BEGIN, MISTRAL_ARGUMENTS, "[CALL_ID]"),
}


@dataclass(frozen=True, slots=True)
class ModelTools:
    """What a model makes of tools. token_id: of a mark that is one added token, else None.

    problem: why it cannot be given tools; then there is no format.
    """

    format: ToolFormat | None
    problem: str
    token_id: Callable[[str], int | None]
    special_ids: frozenset[int]

    @property
    def shown_token_ids(self) -> tuple[int, ...]:
        """Special tokens that the parser has to see."""
        marks = self.format.marks if self.format is not None else ()
        ids = map(self.token_id, marks)
        return tuple(number for number in ids if number in self.special_ids)


def find_format(template: str | None) -> tuple[ToolFormat | None, str]:
    """The format, or None and why there is none."""
    if template is None or not _TOOLS_VARIABLE.search(template):
        return None, "this model's chat template knows no tools"
    if MISTRAL_BEGIN in template:
        named = MISTRAL_ARGUMENTS in template
        return (ToolFormat.MISTRAL_NAMED if named else ToolFormat.MISTRAL_LIST), ""
    if HERMES_BEGIN in template and "<function=" not in template:
        return ToolFormat.HERMES, ""
    if '"parameters": ' in template and _LLAMA_ROLE.search(template):
        return ToolFormat.LLAMA, ""
    return None, "this model writes calls in a format that is not known here"
