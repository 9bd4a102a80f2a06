"""Grammars on a small byte-level vocabulary: what is refused, and what a constraint allows."""

import ctypes
import json
import re
import time
from typing import cast

import pytest
from byte_words import AB, ABC, END, STOP, TOKENIZER, WORDS, allowed, feed
from llguidance import LLMatcher, LLTokenizer
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE

from fastgen_runtime.engine.grammar import (
    MAX_GRAMMAR_CHARACTERS,
    GrammarCompiler,
    GrammarConstraint,
    GrammarError,
    check_grammar,
)
from fastgen_runtime.engine.request import Grammar, GrammarKind

JSON, REGEX, LARK = GrammarKind.JSON_SCHEMA, GrammarKind.REGEX, GrammarKind.LARK
COMPILER = GrammarCompiler(TOKENIZER, {END, STOP})


def compiled(
    kind: GrammarKind, text: str, compiler: GrammarCompiler = COMPILER
) -> GrammarConstraint:
    return compiler.compile(Grammar(kind, text), pytest.fail)


def test_a_mask_allows_what_may_come_next() -> None:
    constraint = compiled(REGEX, "ab(c|d)+")
    assert allowed(constraint) == {"a", "ab", "abc"}
    assert constraint.accept(AB) is False
    assert allowed(constraint) == {"c", "d"}
    assert feed(constraint, "cd") == [False, False]
    assert allowed(constraint) == {"c", "d", "<end>", "<stop>"}
    assert constraint.accept(STOP) is True


def test_only_end_tokens_follow_a_complete_output() -> None:
    constraint = compiled(REGEX, "abc")
    assert constraint.accept(ABC) is False
    assert allowed(constraint) == {"<end>", "<stop>"}
    assert constraint.accept(END) is True


def test_any_token_ends_a_complete_output_of_a_model_without_end_tokens() -> None:
    constraint = compiled(REGEX, "abc|abcd", GrammarCompiler(TOKENIZER, ()))
    assert constraint.accept(ABC) is False
    assert allowed(constraint) == {"d"}, "it could have ended, but not said so"
    assert feed(constraint, "d") == [False]
    assert allowed(constraint) == set(WORDS)
    assert constraint.accept(AB) is True


def test_json_schemas_and_lark_grammars() -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "required": ["n"],
        "additionalProperties": False,
    }
    constraint = compiled(JSON, json.dumps(schema))
    assert not any(feed(constraint, '{"n": -12}'))
    assert allowed(constraint) == {"<end>", "<stop>"}
    constraint = compiled(LARK, 'start: "(" start ")" | "a"')
    assert allowed(constraint) == {"(", "a"}
    assert not any(feed(constraint, "((a"))
    assert allowed(constraint) == {")"}


@pytest.mark.parametrize("text", ["{}", "true", '{"type": "object"}'])
def test_any_json(text: str) -> None:
    assert not any(feed(compiled(JSON, text), '{"a": [1, null, {"b": "ü"}]}'))


BAD = [
    (JSON, "{", "line 1 column 2"),
    (JSON, "[1]", "object or boolean"),
    (JSON, '{"type": "objet"}', "Invalid type: objet"),
    (JSON, '{"if": {}}', "Unimplemented keys: ..if"),
    (JSON, '{"$ref": "#/$defs/a"}', "does not exist"),
    (JSON, '{"$ref": "http://example.com/a"}', "does not fetch"),
    (JSON, '{"type": "string", "pattern": "("}', "unclosed group"),
    (JSON, '{"a":' * 5000 + "1" + "}" * 5000, "nested too deeply|recursion limit"),
    (JSON, '{"items":' * 500 + "{}" + "}" * 500, "recursion limit"),
    (JSON, '{"enum": []}', "Unsatisfiable"),
    (JSON, '{"title": "\ud800"}', "JSON schema"),
    (REGEX, "(a", "used: unclosed group"),
    (REGEX, "(?=a)b", "look-around"),
    (REGEX, "\ud800", "surrogates"),
    (LARK, "start: word", 'unknown name: "word"'),
    (LARK, "", "Empty grammar"),
    (JSON, '{"type": "integer", "multipleOf": 100003}', "multipleOf with digits that make more"),
    (JSON, '{"type": "number", "multipleOf": 1.00003}', "multipleOf with digits that make more"),
    (JSON, '{"type": "integer", "multipleOf": 1e9}', "multipleOf with digits that make more"),
    (JSON, '{"type": "integer", "multiple\\u004ff" : 1000003}', "multipleOf with digits"),
    (
        JSON,
        '{"allOf": [{"multipleOf": 997}, {"multipleOf": 1009}]}',
        "least common multiple of all",
    ),
    (LARK, 'start: %json {"type": "integer", "multipleOf": 1000003}', "multipleOf with digits"),
    (REGEX, "a" * (MAX_GRAMMAR_CHARACTERS + 1), "more than 262144 characters"),
]


@pytest.mark.parametrize(("kind", "text", "words"), BAD)
def test_a_bad_grammar_is_told_in_one_line(kind: GrammarKind, text: str, words: str) -> None:
    grammar = Grammar(kind, text)
    problem = check_grammar(grammar)
    assert problem is not None
    assert "\n" not in problem
    assert len(problem) < 400
    with pytest.raises(GrammarError) as caught:
        COMPILER.compile(grammar, pytest.fail)
    assert re.search(words, problem)
    assert str(caught.value) == problem


@pytest.mark.parametrize(("kind", "text"), [(JSON, '{"$ref": "#"}'), (LARK, "start: start")])
def test_a_grammar_without_any_text_is_refused_when_compiled(kind: GrammarKind, text: str) -> None:
    with pytest.raises(GrammarError, match="no text matches it"):
        compiled(kind, text)


def test_a_token_that_the_mask_forbids_is_told_as_a_failure() -> None:
    failures: list[str] = []
    constraint = COMPILER.compile(Grammar(REGEX, "abc"), failures.append)
    assert constraint.accept(WORDS.index("d")) is False
    assert len(failures) == 1
    assert constraint.accept(ABC) is False
    assert len(failures) == 1
    assert constraint.mask().any()


class NothingAllowed:
    """An LLMatcher whose mask is empty, which is not to happen: it reports an error instead."""

    def unsafe_compute_mask_ptr(self, pointer: int, size: int) -> None:
        ctypes.memset(pointer, 0, size)

    def is_error(self) -> bool:
        return False


def test_an_empty_mask_is_a_failure_and_never_reaches_the_engine() -> None:
    table = LLTokenizer(TOKENIZER.to_str(), eos_token=[END])
    for ends in ({END}, set[int]()):
        failures: list[str] = []
        matcher = cast(LLMatcher, NothingAllowed())
        constraint = GrammarConstraint(
            matcher, table, ends, REGEX, failures.append, time.thread_time
        )
        assert len(failures) == 1
        assert "no token for what must come next" in failures[0]
        assert allowed(constraint) == set(WORDS)
        assert constraint.accept(AB) is False


def test_a_place_where_the_model_has_no_token_is_a_failure() -> None:
    tokenizer = Tokenizer(BPE({"a": 0, "b": 1}, []))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    for ends in ({2}, set[int]()):
        compiler = GrammarCompiler(tokenizer, ends)
        failures: list[str] = []
        constraint = compiler.compile(Grammar(REGEX, "az|bb"), failures.append)
        assert constraint.accept(0) is False
        assert len(failures) == 1
        assert constraint.mask().all()
        assert constraint.accept(1) is False
        with pytest.raises(GrammarError):
            compiler.compile(Grammar(REGEX, "z"), pytest.fail)
