"""Grammars of answers with calls, in the Lark language of llguidance.

A mark that is an added token of the tokenizer has to be named by its id there: as a text it would
match the letters only.
"""

import json
from collections.abc import Callable, Sequence
from typing import Final

from fastgen_runtime.front.generation import Tool
from fastgen_runtime.text.tools.format import ToolFormat
from fastgen_runtime.text.tools.parsers import (
    HERMES_BEGIN,
    HERMES_END,
    LLAMA_BEGIN,
    MISTRAL_ARGUMENTS,
    MISTRAL_BEGIN,
)

TokenId = Callable[[str], int | None]
_NO_PARAMETERS: Final = {"type": "object", "properties": {}, "additionalProperties": False}
_SPACING: Final = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""JSON as templates write it and models have seen it; small ones lose themselves in blanks."""


def call_grammar(
    form: ToolFormat,
    tools: Sequence[Tool],
    token_id: TokenId,
    *,
    must_call: bool,
    parallel: bool,
    answer_schema: str | None = None,
) -> str:
    """The grammar of an answer that calls these tools only, with arguments after their schemas.

    must_call: it consists of calls. Else it may be text, or JSON after answer_schema if there is
    one. parallel: there may be several calls. token_id: of an added token with this text.
    """
    calls = {
        ToolFormat.HERMES: _hermes,
        ToolFormat.LLAMA: _llama,
        ToolFormat.MISTRAL_LIST: _mistral_list,
        ToolFormat.MISTRAL_NAMED: _mistral_named,
    }[form](token_id, parallel)
    names = [f"call_{number}" for number in range(len(tools))]
    rules = [*calls, f"one: {' | '.join(names)}"]
    for name, tool in zip(names, tools, strict=True):
        rules.append(f"{name}: {_one(form, tool, token_id, f'{name}_arguments')}")
        schema = json.dumps({"x-guidance": _SPACING} | (dict(tool.parameters) or _NO_PARAMETERS))
        rules.append(f"{name}_arguments: %json {schema}")
    if must_call:
        start = ["start: calls"]
    elif answer_schema is not None:
        start = ["start: calls | answer", f"answer: %json {answer_schema}"]
    else:
        start = _among_text(form, token_id, parallel)
    return "\n".join([*start, *rules])


def _hermes(token_id: TokenId, parallel: bool) -> list[str]:
    more = ' ("\\n"? begin inner)*' if parallel else ""
    return [
        f"calls: begin inner{more}",
        f"begin: {_mark(HERMES_BEGIN, token_id)}",
        f'inner: "\\n" one "\\n" {_mark(HERMES_END, token_id)}',
    ]


def _llama(token_id: TokenId, parallel: bool) -> list[str]:
    begin = "" if token_id(LLAMA_BEGIN) is None else f"{_mark(LLAMA_BEGIN, token_id)}? "
    return [f"calls: {begin}one" + (' ("; " one)*' if parallel else "")]


def _mistral_list(token_id: TokenId, parallel: bool) -> list[str]:
    more = ' (", " one)*' if parallel else ""
    return [
        "calls: begin inner",
        f"begin: {_mark(MISTRAL_BEGIN, token_id)}",
        f'inner: "[" one{more} "]"',
    ]


def _mistral_named(token_id: TokenId, parallel: bool) -> list[str]:
    return [
        "calls: begin inner" + (" (begin inner)*" if parallel else ""),
        f"begin: {_mark(MISTRAL_BEGIN, token_id)}",
        "inner: one",
    ]


def _one(form: ToolFormat, tool: Tool, token_id: TokenId, arguments: str) -> str:
    if form is ToolFormat.MISTRAL_NAMED:
        return f"{json.dumps(tool.name)} {_mark(MISTRAL_ARGUMENTS, token_id)} {arguments}"
    key = "parameters" if form is ToolFormat.LLAMA else "arguments"
    head = f'{{"name": {json.dumps(tool.name)}, "{key}": '
    return f'{json.dumps(head)} {arguments} "}}"'


def _among_text(form: ToolFormat, token_id: TokenId, parallel: bool) -> list[str]:
    """What a parser would not take for a call is text; a call must be a right one."""
    if form is ToolFormat.LLAMA:
        return ["start: calls | TEXT", r"TEXT: /([^{\s](.|\n)*)?/"]
    mark = form.marks[0]
    text = r"TEXT: /(.|\n)*/"
    if token_id(mark) is not None:
        lead = [f"lead: TEXT {_mark(mark, token_id)} inner"]
    else:
        lead = ["lead: head inner", f"head[lazy]: TEXT {json.dumps(mark)}"]
    several = parallel and form is not ToolFormat.MISTRAL_LIST
    return ["start: lead* tail" if several else "start: lead | TEXT", "tail: TEXT", text, *lead]


def _mark(text: str, token_id: TokenId) -> str:
    number = token_id(text)
    return json.dumps(text) if number is None else f"<[{number}]>"
