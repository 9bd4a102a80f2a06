"""What one grammar may cost others: usual ones pass, hostile ones end alone."""

import json

import numpy as np
import pytest
from byte_words import END, STOP, TOKENIZER, WORDS, allowed, feed

from fastgen_runtime.engine.grammar import (
    SECONDS_PER_TOKEN,
    SPARE_SECONDS,
    GrammarCompiler,
    GrammarError,
    check_grammar,
)
from fastgen_runtime.engine.request import Grammar, GrammarKind

JSON, REGEX, LARK = GrammarKind.JSON_SCHEMA, GrammarKind.REGEX, GrammarKind.LARK
COMPILER = GrammarCompiler(TOKENIZER, {END, STOP})
TIMELESS = GrammarCompiler(TOKENIZER, {END, STOP}, lambda: 0.0)
"""Only llguidance's limits hold."""

WORD_LIST = ["".join(chr(97 + n * k % 26) for k in (1, 3, 7, 9, 5)) + str(n) for n in range(1000)]
PROPERTIES = {f"field_{n}": {"type": ["string", "integer"]} for n in range(200)}


def nested(depth: int) -> dict[str, object]:
    inner = nested(depth - 1) if depth else {"type": "string"}
    return {"type": "object", "properties": {"a": inner, "b": {"type": "integer"}}}


USUAL = {
    "required": (JSON, {"type": "object", "properties": PROPERTIES, "required": [*PROPERTIES]}),
    "optional": (JSON, {"type": "object", "properties": PROPERTIES, "additionalProperties": False}),
    "nested": (JSON, nested(10)),
    "enum": (JSON, {"type": "array", "items": {"enum": WORD_LIST[:500]}, "minItems": 9}),
    "steps": (JSON, {"allOf": [{"multipleOf": 0.01}, {"multipleOf": 3600}]}),
    "choice": (LARK, "start: " + " | ".join(map(json.dumps, WORD_LIST))),
}


@pytest.mark.parametrize("name", USUAL)
def test_the_limits_let_usual_grammars_pass(name: str) -> None:
    kind, what = USUAL[name]
    text = what if isinstance(what, str) else json.dumps(what)
    assert check_grammar(Grammar(kind, text)) is None
    constraint = TIMELESS.compile(Grammar(kind, text), pytest.fail)
    dice = np.random.default_rng(0)
    for _ in range(100):
        choices = [WORDS.index(word) for word in sorted(allowed(constraint))]
        if constraint.accept(int(dice.choice(choices))):
            break


AMBIGUOUS = 'start: e\ne: e e | "a" | "b" | e "c" e'
"""Each token of its output costs more than the one before."""

HOSTILE = [
    (REGEX, "(((a*)*)*)*b"),
    (REGEX, "(a|a|aa)*c"),
    (REGEX, "a{1000000}"),
    (REGEX, "((a{1,1000}){1,1000}){1,1000}"),
    (REGEX, "[ab]a{1000000}"),
    (REGEX, "(a|b)*a(a|b){300}"),
    (JSON, '{"type": "string", "minLength": 100000000}'),
    (JSON, '{"type": "integer", "multipleOf": 20011}'),
    (JSON, '{"type": "array", "items": {}, "minItems": 1000000}'),
    (JSON, json.dumps({"enum": [f"{n * 7919:09d}" for n in range(9000)]})),
    (LARK, 'start: x*\nx: "a" | "a" "a" | x x | ""'),
    (LARK, 'start: ("a" "b"){1000000}'),
    (LARK, AMBIGUOUS),
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


LETTERS = "abcdefghijklmnopqrstuvwxyz"
WIDE = "start: {}\nt: {}\ne: {}".format(
    "{}",
    " | ".join(f'"{letter}" e' for letter in LETTERS),
    " | ".join(f'"{n}x"' for n in range(400)),
)
"""After any of 26 letters there are 400 items to look at."""


def test_a_single_mask_is_not_computed_to_the_end_at_any_cost() -> None:
    with pytest.raises(GrammarError, match="Too many items"):
        TIMELESS.compile(Grammar(LARK, WIDE.format("t")), pytest.fail)
    failures: list[str] = []
    constraint = TIMELESS.compile(Grammar(LARK, WIDE.format('"x" t')), failures.append)
    assert constraint.accept(WORDS.index("x")) is False
    assert len(failures) == 1
    assert "Too many items" in failures[0]
    assert allowed(constraint) == set(WORDS)


class Clock:
    """Each token takes `seconds`."""

    def __init__(self) -> None:
        self.now = 0.0
        self.seconds = 0.0

    def __call__(self) -> float:
        self.now += self.seconds
        return self.now


@pytest.mark.parametrize(
    ("seconds", "most"),
    [(SECONDS_PER_TOKEN, None), (2 * SECONDS_PER_TOKEN, 15), (0.9 * SPARE_SECONDS, 2), (1, 1)],
)
def test_masks_that_take_long_again_and_again_end_their_request(
    seconds: float, most: int | None
) -> None:
    clock = Clock()
    failures: list[str] = []
    compiler = GrammarCompiler(TOKENIZER, {END, STOP}, clock)
    constraint = compiler.compile(Grammar(REGEX, "a*"), failures.append)
    clock.seconds = seconds
    taken = 0
    while taken < 100 and not failures:
        constraint.accept(WORDS.index("a"))
        taken += 1
    if most is None:
        assert not failures
        return
    assert taken - 1 == most
    assert failures == [
        "is no regular expression that can be used: the tokens that it allows take too long to "
        "find: give it fewer alternatives, and only one way to read a text"
    ]
    assert allowed(constraint) == set(WORDS)
    assert constraint.accept(WORDS.index("a")) is False
    assert len(failures) == 1


def test_one_slow_mask_is_forgiven_and_an_end_is_an_end() -> None:
    clock = Clock()
    compiler = GrammarCompiler(TOKENIZER, {END, STOP}, clock)
    constraint = compiler.compile(Grammar(REGEX, "a*"), pytest.fail)
    for _ in range(3):
        clock.seconds = 0.9 * SPARE_SECONDS
        constraint.accept(WORDS.index("a"))
        clock.seconds = 0
        feed(constraint, "a" * 20)
    clock.seconds = 1
    constraint.accept(WORDS.index("a"))
    assert constraint.accept(END) is True


def test_choices_have_one_allowance_and_each_its_own_output() -> None:
    clock = Clock()
    failures: list[str] = []
    compiler = GrammarCompiler(TOKENIZER, {END, STOP}, clock)
    first = compiler.compile(Grammar(REGEX, "(a|b)c*"), pytest.fail)
    second = first.copy(failures.append)
    assert feed(first, "ac") == [False, False]
    assert allowed(first) == {"c", "<end>", "<stop>"}
    assert allowed(second) == {"a", "b"}
    clock.seconds = 2 * SPARE_SECONDS
    first.accept(WORDS.index("c"))
    second.accept(WORDS.index("b"))
    assert len(failures) == 1
