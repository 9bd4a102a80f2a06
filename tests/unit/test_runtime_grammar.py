"""Grammars on a small byte-level vocabulary: what is refused, and what a constraint allows."""

import json
import re
import threading

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from fastgen_runtime.engine.grammar import (
    MAX_GRAMMAR_CHARACTERS,
    GrammarCompiler,
    GrammarConstraint,
    GrammarError,
    check_grammar,
)
from fastgen_runtime.engine.grammar_queue import GrammarQueue
from fastgen_runtime.engine.request import Grammar, GrammarKind, NewRequest, Refusal, RefusalKind
from fastgen_runtime.engine.step import Sampling

JSON, REGEX, LARK = GrammarKind.JSON_SCHEMA, GrammarKind.REGEX, GrammarKind.LARK
WORDS = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "ab", "abc", "<end>", "<stop>"]
AB, ABC, END, STOP = range(len(WORDS) - 4, len(WORDS))


def byte_tokenizer() -> Tokenizer:
    vocabulary = {word: number for number, word in enumerate(WORDS[:-2])}
    tokenizer = Tokenizer(BPE(vocabulary, [("a", "b"), ("ab", "c")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(WORDS[-2:])
    return tokenizer


TOKENIZER = byte_tokenizer()
COMPILER = GrammarCompiler(TOKENIZER, {END, STOP})


def compiled(
    kind: GrammarKind, text: str, compiler: GrammarCompiler = COMPILER
) -> GrammarConstraint:
    return compiler.compile(Grammar(kind, text), pytest.fail)


def allowed(constraint: GrammarConstraint) -> set[str]:
    mask = constraint.mask()
    assert mask.dtype == np.int32
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    return {WORDS[token] for token in np.flatnonzero(bits)[: len(WORDS)]}


def feed(constraint: GrammarConstraint, text: str) -> list[bool]:
    ids = TOKENIZER.encode(text).ids
    return [constraint.accept(token) for token in ids]


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


HOSTILE = [
    (REGEX, "(((a*)*)*)*b"),
    (REGEX, "(a|a|aa)*c"),
    (REGEX, "a{1000000}"),
    (REGEX, "((a{1,1000}){1,1000}){1,1000}"),
    (REGEX, "[ab]a{1000000}"),
    (REGEX, "(a|b)*a(a|b){300}"),
    (JSON, '{"type": "string", "minLength": 100000000}'),
    (JSON, '{"type": "integer", "multipleOf": 100003}'),
    (JSON, '{"type": "array", "items": {}, "minItems": 1000000}'),
    (JSON, json.dumps({"enum": [f"{n * 7919:09d}" for n in range(9000)]})),
    (LARK, 'start: x*\nx: "a" | "a" "a" | x x | ""'),
    (LARK, 'start: ("a" "b"){1000000}'),
]


@pytest.mark.parametrize(("kind", "text"), HOSTILE)
def test_a_hostile_grammar_is_refused_or_works_or_fails_alone(kind: GrammarKind, text: str) -> None:
    """Whichever it is, it ends: the limits hold at each token."""
    failures: list[str] = []
    check_grammar(Grammar(kind, text))
    try:
        constraint = COMPILER.compile(Grammar(kind, text), failures.append)
    except GrammarError:
        return
    dice = np.random.default_rng(0)
    for _ in range(30):
        choices = [WORDS.index(word) for word in sorted(allowed(constraint))]
        if constraint.accept(int(dice.choice(choices))) or failures:
            break
    assert len(failures) <= 1


def test_a_token_that_the_mask_forbids_is_told_as_a_failure() -> None:
    failures: list[str] = []
    constraint = COMPILER.compile(Grammar(REGEX, "abc"), failures.append)
    assert constraint.accept(WORDS.index("d")) is False
    assert len(failures) == 1
    assert constraint.accept(ABC) is False
    assert len(failures) == 1
    assert constraint.mask().any()


def request(name: str, text: str) -> NewRequest:
    return NewRequest(name, [1], 4, Sampling(), grammar=Grammar(REGEX, text))


def test_the_queue_compiles_refuses_and_forgets() -> None:
    loaded = threading.Event()

    def load() -> GrammarCompiler:
        loaded.wait(10)
        return COMPILER

    queue = GrammarQueue(load)
    for name, text in (("good", "abc"), ("bad", "("), ("gone", "abc")):
        queue.add(request(name, text))
    assert queue.take_ready() == []
    queue.abort("gone")
    queue.abort("unknown")
    assert len(queue) == 2
    loaded.set()
    queue.wait_until_loaded()
    told: dict[str, GrammarConstraint | Refusal] = {}
    while len(queue):
        told |= {new.request_id: what for new, what in queue.take_ready()}
    assert isinstance(told["good"], GrammarConstraint)
    assert isinstance(told["bad"], Refusal)
    assert told["bad"].kind is RefusalKind.INVALID
    assert told["bad"].message == (
        "the grammar is no regular expression that can be used: unclosed group"
    )
    assert set(told) == {"good", "bad"}
    assert queue.take_failed() == []
    told["good"].accept(WORDS.index("d"))
    ((failed, refusal),) = queue.take_failed()
    assert failed == "good"
    assert refusal.kind is RefusalKind.INVALID
    queue.close()


def test_requests_with_a_grammar_are_refused_where_the_tokenizer_does_not_allow_it() -> None:
    def load() -> GrammarCompiler:
        raise GrammarError("cannot be used with this model's tokenizer: unknown kind")

    queue = GrammarQueue(load)
    queue.wait_until_loaded()
    queue.add(request("a", "abc"))
    while not (ready := queue.take_ready()):
        pass
    assert isinstance(ready[0][1], Refusal)
    assert "this model's tokenizer" in ready[0][1].message
    queue.close()
