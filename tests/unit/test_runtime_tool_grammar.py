"""A constrained answer is a right call, in each format's own words, or text that is none."""

import json
import random
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from fastgen_runtime.engine.grammar import GrammarCompiler, check_grammar
from fastgen_runtime.engine.request import Grammar, GrammarKind
from fastgen_runtime.front.generation import Tool
from fastgen_runtime.text.detokenizer import BYTE_OF_CHARACTER
from fastgen_runtime.text.tools.format import ToolFormat
from fastgen_runtime.text.tools.grammar import call_grammar
from fastgen_runtime.text.tools.source import Arguments, CallStart, Text

ANSWER = '{"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}'
TOOLS = [
    Tool(
        "move",
        "Moves.",
        {
            "type": "object",
            "properties": {"way": {"$ref": "#/$defs/Way"}, "steps": {"enum": [1, 2]}},
            "required": ["way", "steps"],
            "additionalProperties": False,
            "$defs": {"Way": {"enum": ["up", "down"]}},
        },
    ),
    Tool("stop"),
]
CHECKS: dict[str, Any] = {
    "move": lambda given: given.keys() == {"way", "steps"} and given["way"] in ("up", "down"),
    "stop": lambda given: given == {},
}
NAMES = frozenset(CHECKS)


class Model:
    """A tokenizer of single bytes; marks: those of its formats that are one added token."""

    def __init__(self, marks: tuple[str, ...], special: bool) -> None:
        tokenizer = Tokenizer(models.BPE(dict(BYTE_OF_CHARACTER), []))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.add_special_tokens([AddedToken("<end>", special=True)])
        tokenizer.add_tokens([AddedToken(mark, special=special) for mark in marks])
        self.tokenizer = tokenizer
        self.end = tokenizer.token_to_id("<end>")
        self.compiler = GrammarCompiler(tokenizer, {self.end})
        self._marks = marks

    def token_id(self, mark: str) -> int | None:
        number: int | None = self.tokenizer.token_to_id(mark) if mark in self._marks else None
        return number

    def is_allowed(self, grammar: str, text: str) -> bool:
        """Whether the grammar lets a whole answer be this text."""
        constraint = self._constraint(grammar)
        ids = self.tokenizer.encode(text, add_special_tokens=False).ids
        for token_id in [*ids, self.end]:
            if not _allows(constraint.mask(), token_id):
                return False
            constraint.accept(token_id)
        return True

    def wander(self, grammar: str, rng: random.Random) -> str:
        """A random answer that the grammar lets be."""
        constraint = self._constraint(grammar)
        ids: list[int] = []
        for _ in range(600):
            mask = constraint.mask()
            choices = [token_id for token_id in range(len(mask) * 32) if _allows(mask, token_id)]
            ids.append(self.end if self.end in choices else rng.choice(choices))
            if constraint.accept(ids[-1]):
                break
        return self.tokenizer.decode(ids[:-1], skip_special_tokens=False)

    def _constraint(self, grammar: str) -> Any:
        wanted = Grammar(GrammarKind.LARK, grammar)
        assert check_grammar(wanted) is None
        return self.compiler.compile(wanted, pytest.fail)


def _allows(mask: Any, token_id: int) -> bool:
    return bool(mask.view(np.uint32)[token_id // 32] >> np.uint32(token_id % 32) & 1)


@pytest.fixture(params=["text", "added", "special"])
def marked(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def model_of(form: ToolFormat, marked: str) -> Model:
    return Model(() if marked == "text" else form.marks, special=marked == "special")


def calls_in(form: ToolFormat, text: str) -> tuple[str, list[tuple[str, Any]]]:
    parser = form.parser(NAMES)
    told, calls = "", []
    for event in [*parser.push(text), *parser.flush()]:
        match event:
            case Text(piece):
                told += piece
            case CallStart(name):
                calls.append((name, ""))
            case Arguments(piece):
                calls[-1] = (calls[-1][0], calls[-1][1] + piece)
    return told, [(name, json.loads(arguments)) for name, arguments in calls]


def grammar_for(form: ToolFormat, model: Model, **options: Any) -> str:
    return call_grammar(form, TOOLS, model.token_id, **options)


@pytest.mark.parametrize("form", ToolFormat)
@pytest.mark.parametrize("parallel", [True, False])
def test_whatever_is_allowed_is_a_right_call(form: ToolFormat, parallel: bool, marked: str) -> None:
    model = model_of(form, marked)
    grammar = grammar_for(form, model, must_call=True, parallel=parallel)
    rng = random.Random(f"{form}{parallel}")
    text = model.wander(grammar, rng)
    told, calls = calls_in(form, text)
    assert told == "", text
    assert len(calls) == 1 or (parallel and calls), text
    assert all(CHECKS[name](arguments) for name, arguments in calls), text


MOVE = '{"way": "up", "steps": 1}'
ONE = {
    ToolFormat.HERMES: f'<tool_call>\n{{"name": "move", "arguments": {MOVE}}}\n</tool_call>',
    ToolFormat.LLAMA: f'{{"name": "move", "parameters": {MOVE}}}',
    ToolFormat.MISTRAL_LIST: f'[TOOL_CALLS][{{"name": "move", "arguments": {MOVE}}}]',
    ToolFormat.MISTRAL_NAMED: f"[TOOL_CALLS]move[ARGS]{MOVE}",
}
TWO = {
    ToolFormat.HERMES: "\n".join([ONE[ToolFormat.HERMES]] * 2),
    ToolFormat.LLAMA: "; ".join([ONE[ToolFormat.LLAMA]] * 2),
    ToolFormat.MISTRAL_LIST: ONE[ToolFormat.MISTRAL_LIST][:-1]
    + f', {{"name": "move", "arguments": {MOVE}}}]',
    ToolFormat.MISTRAL_NAMED: ONE[ToolFormat.MISTRAL_NAMED] * 2,
}


@pytest.mark.parametrize("form", ToolFormat)
def test_what_each_kind_of_answer_may_be(form: ToolFormat, marked: str) -> None:
    model = model_of(form, marked)
    wrong = ONE[form].replace("up", "sideways")
    text = "I cannot."
    for options, allowed in (
        ({"must_call": True, "parallel": True}, {ONE[form], TWO[form]}),
        ({"must_call": True, "parallel": False}, {ONE[form]}),
        ({"must_call": False, "parallel": True}, {ONE[form], TWO[form], text}),
        ({"must_call": False, "parallel": False}, {ONE[form], text}),
    ):  # fmt: skip
        grammar = grammar_for(form, model, **options)
        for answer in (ONE[form], TWO[form], text, wrong):
            assert model.is_allowed(grammar, answer) == (answer in allowed), (options, answer)


def test_an_answer_after_a_schema_or_calls(marked: str) -> None:
    for form in ToolFormat:
        if form is ToolFormat.LLAMA:
            continue  # refused: both would be objects
        model = model_of(form, marked)
        grammar = grammar_for(form, model, must_call=False, parallel=True, answer_schema=ANSWER)
        for answer in (ONE[form], TWO[form], '{"ok": true}'):
            assert model.is_allowed(grammar, answer), answer
        for answer in ("I cannot.", '{"ok": 1}'):
            assert not model.is_allowed(grammar, answer), answer
