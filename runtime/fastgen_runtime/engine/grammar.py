"""Structured output: JSON schemas, regular expressions and Lark grammars, by llguidance.

No torch here: the front checks grammars with the same code. The limits are what one request may
cost others. A compilation takes place beside the steps and may take about a second. Masks are
computed within the steps: llguidance's limits keep each one to tens of milliseconds, and an
allowance keeps those of a request to a few on average.
"""

import json
import math
import re
import time
from collections.abc import Callable, Collection
from decimal import Decimal
from typing import Final

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from tokenizers import Tokenizer

from fastgen_runtime.engine.request import Grammar, GrammarKind
from fastgen_runtime.engine.step import TokenMask

MAX_GRAMMAR_CHARACTERS: Final = 1 << 18
MAX_COMMON_MULTIPLE: Final = 100_000
"""Of all `multipleOf` in a grammar: it makes as many states, which llguidance does not limit."""
SPARE_SECONDS: Final = 0.06
SECONDS_PER_TOKEN: Final = 0.004
_MAX_PROBLEM_CHARACTERS: Final = 300
# The time of a mask grows with items times items in a row, since each is looked for among those.
_LIMITS: Final = LLParserLimits(
    step_lexer_fuel=60_000,
    step_max_items=5_000,
    max_items_in_row=2_000,
    max_lexer_states=100_000,
    verbose_errors=False,
)
_MULTIPLE: Final = re.compile(r'"multipleOf"\s*:\s*(-?[0-9][0-9.eE+-]*)')
_ESCAPE: Final = re.compile(r"\\u00([0-7][0-9a-fA-F])")
_NAMES: Final = {
    GrammarKind.JSON_SCHEMA: "JSON schema",
    GrammarKind.REGEX: "regular expression",
    GrammarKind.LARK: "Lark grammar",
}


class GrammarError(Exception):
    """A grammar cannot be used; the message is the end of a sentence about it ("is no …")."""


def check_grammar(grammar: Grammar) -> str | None:
    """What is wrong with a grammar, as the end of a sentence ("is no …"); None: nothing.

    Needs no tokenizer. Takes a millisecond as a rule and a second or two for the largest: to be
    called in a thread, which leaves the interpreter to others meanwhile.
    """
    try:
        source = _source(grammar)
    except GrammarError as error:
        return str(error)
    problem = LLMatcher.validate_grammar(source, limits=_LIMITS)
    return _describe(grammar.kind, problem) if problem else None


class Allowance:
    """Time that the masks of one request, all its choices together, may take of the steps.

    A token bucket: full with SPARE_SECONDS at first, filled by SECONDS_PER_TOKEN with each token.
    Once empty it stays so.
    """

    __slots__ = ("_seconds",)

    def __init__(self) -> None:
        self._seconds = SPARE_SECONDS

    @property
    def is_spent(self) -> bool:
        return self._seconds <= 0

    def spend(self, seconds: float) -> None:
        """Takes what a token has cost."""
        if not self.is_spent:
            self._seconds = min(SPARE_SECONDS, self._seconds + SECONDS_PER_TOKEN - seconds)


class GrammarCompiler:
    """Turns grammars into constraints on the tokens of one tokenizer; usable from any thread."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        end_token_ids: Collection[int],
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        """Takes a second for 50 000 tokens, during which no other Python code runs.

        clock: in seconds, for what tokens cost. The default counts this thread's use of the
        processor: a grammar answers for no delay that others bring about. Raises GrammarError for
        a tokenizer that llguidance cannot use.
        """
        ends = sorted(end_token_ids)
        try:
            self._table = LLTokenizer(tokenizer.to_str(), eos_token=ends or None)
        except Exception as error:
            raise GrammarError(f"cannot be used with this model's tokenizer: {error}") from error
        self._end_token_ids = frozenset(ends)
        self._clock = clock

    def compile(self, grammar: Grammar, tell_failure: Callable[[str], None]) -> "GrammarConstraint":
        """A constraint at the beginning of an output; raises GrammarError.

        tell_failure: called once with the end of a sentence when a later token proves to cost more
        than the limits, or to have none that may follow; the output cannot be completed then.
        """
        matcher = LLMatcher(self._table, _source(grammar), log_level=0, limits=_LIMITS)
        if matcher.is_error():
            raise GrammarError(_describe(grammar.kind, matcher.get_error()))
        problems: list[str] = []
        constraint = GrammarConstraint(
            matcher, self._table, self._end_token_ids, grammar.kind, problems.append, self._clock
        )
        if problems:
            raise GrammarError(problems[0])
        constraint.tell_failure = tell_failure
        return constraint


class GrammarConstraint:
    """A grammar at work on one request's output: a `request.Constraint`; not thread-safe.

    Each mask is computed when the token before it is taken, the first one at once. In a model
    without end tokens any token may follow a complete output, and is its end.
    """

    __slots__ = (
        "_allowance", "_clock", "_end_token_ids", "_has_failed", "_is_complete", "_kind", "_mask",
        "_matcher", "_table", "tell_failure",
    )  # fmt: skip

    def __init__(
        self,
        matcher: LLMatcher,
        table: LLTokenizer,
        end_token_ids: Collection[int],
        kind: GrammarKind,
        tell_failure: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        self._matcher = matcher
        self._table = table
        self._end_token_ids = end_token_ids
        self._kind = kind
        self.tell_failure = tell_failure
        self._clock = clock
        self._allowance = Allowance()
        self._has_failed = False
        self._is_complete = False
        self._mask = np.empty(0, np.int32)
        self._compute_mask()

    def copy(self, tell_failure: Callable[[str], None]) -> "GrammarConstraint":
        """One at the same place of the output, for another choice of the same request.

        Copies have the allowance and llguidance's table of lexer states in common: what one uses
        up the others lack. Copies for other requests would let one client end another's.
        """
        copied = object.__new__(GrammarConstraint)
        for name in self.__slots__:
            setattr(copied, name, getattr(self, name))
        copied._matcher = self._matcher.deep_copy()
        copied.tell_failure = tell_failure
        return copied

    def mask(self) -> TokenMask:
        """The tokens that may come next; only end tokens once the output is complete.

        Any after a failure: what they are does not matter any more.
        """
        return self._mask

    def accept(self, token_id: int) -> bool:
        """Takes the next token; True when the output is complete and cannot go on."""
        if self._is_complete:
            return True
        if self._has_failed:
            return False
        began = self._clock()
        if self._allowance.is_spent and token_id not in self._end_token_ids:
            self._fail(
                "the tokens that it allows take too long to find: give it fewer alternatives, and "
                "only one way to read a text"
            )
        elif self._matcher.consume_token(token_id):
            if token_id in self._end_token_ids:
                return True
            self._compute_mask()
        else:
            self._fail(self._matcher.get_error())
        self._allowance.spend(self._clock() - began)
        return False

    def _compute_mask(self) -> None:
        mask = np.zeros(-(-self._table.vocab_size // 32), np.int32)
        self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        if self._matcher.is_error():
            self._fail(self._matcher.get_error())
            return
        if not mask.any():
            self._fail("the model has no token for what must come next")
            return
        if not self._end_token_ids:
            # llguidance has taken a token for an end that is none to the model.
            bits = mask.view(np.uint32)
            for token_id in self._table.eos_tokens:
                bits[token_id // 32] &= ~np.uint32(1 << token_id % 32)
            self._is_complete = not mask.any()
            if self._is_complete:
                mask.fill(-1)
        self._mask = mask

    def _fail(self, problem: str) -> None:
        self._has_failed = True
        self._mask = np.full(-(-self._table.vocab_size // 32), -1, np.int32)
        self.tell_failure(_describe(self._kind, problem))


def _source(grammar: Grammar) -> str:
    """The grammar as llguidance reads it; raises GrammarError."""
    if len(grammar.text) > MAX_GRAMMAR_CHARACTERS:
        raise GrammarError(f"has more than {MAX_GRAMMAR_CHARACTERS} characters")
    _check_multiples(grammar.text)
    try:
        match grammar.kind:
            case GrammarKind.JSON_SCHEMA:
                json.loads(grammar.text)  # its errors tell the place in this text
                return LLMatcher.grammar_from_json_schema(grammar.text)
            case GrammarKind.REGEX:
                return LLMatcher.grammar_from_regex(grammar.text)
            case GrammarKind.LARK:
                return LLMatcher.grammar_from_lark(grammar.text)
    except RecursionError as error:
        raise GrammarError(_describe(grammar.kind, "it is nested too deeply")) from error
    except ValueError as error:  # also for text that is no Unicode
        raise GrammarError(_describe(grammar.kind, str(error))) from error


def _check_multiples(text: str) -> None:
    """Raises GrammarError for a `multipleOf` that takes long to compile, also in a part in JSON.

    Where one number must be a multiple of several, it is one of their least common multiple.
    """
    plain = _ESCAPE.sub(lambda found: chr(int(found[1], 16)), text)
    multiple = 1
    for found in _MULTIPLE.finditer(plain):
        try:
            _, digits, exponent = Decimal(found[1]).normalize().as_tuple()
        except ArithmeticError:
            continue  # no number: llguidance tells where
        states = int(Decimal((0, digits, min(max(int(exponent), 0), 10))))
        multiple = math.lcm(multiple, states or 1)
        if multiple > MAX_COMMON_MULTIPLE:
            raise GrammarError(
                f"has a multipleOf with digits that make more than {MAX_COMMON_MULTIPLE}, alone or "
                "in the least common multiple of all: give smaller ones"
            )


def _describe(kind: GrammarKind, problem: str) -> str:
    """llguidance's words in one line; it shows places by pictures of several."""
    problem = problem.removesuffix("<non-verbose/>").strip()
    if problem == "NoExtensionBias":
        problem = "no text matches it"
    if kind is GrammarKind.REGEX and "\nerror: " in problem:
        problem = problem.partition("\nerror: ")[2]
    problem = problem.partition("\n   1 |")[0]
    problem = " ".join(problem.split())[:_MAX_PROBLEM_CHARACTERS]
    return f"is no {_NAMES[kind]} that can be used: {problem}"
