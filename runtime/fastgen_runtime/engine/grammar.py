"""Structured output: JSON schemas, regular expressions and Lark grammars, by llguidance.

No torch here: the front checks grammars with the same code. The limits are what one request may
cost others: they bound the time of a compilation, which takes place beside the steps, and of each
token's mask, which does not.
"""

import json
from collections.abc import Callable, Collection
from typing import Final

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from tokenizers import Tokenizer

from fastgen_runtime.engine.request import Grammar, GrammarKind
from fastgen_runtime.engine.step import TokenMask

MAX_GRAMMAR_CHARACTERS: Final = 1 << 18
_MAX_PROBLEM_CHARACTERS: Final = 300
_LIMITS: Final = LLParserLimits(
    step_lexer_fuel=100_000,
    step_max_items=30_000,
    max_items_in_row=10_000,
    max_lexer_states=100_000,
    verbose_errors=False,
)
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


class GrammarCompiler:
    """Turns grammars into constraints on the tokens of one tokenizer; usable from any thread."""

    def __init__(self, tokenizer: Tokenizer, end_token_ids: Collection[int]) -> None:
        """Takes a second for 50 000 tokens, during which no other Python code runs.

        Raises GrammarError for a tokenizer that llguidance cannot use.
        """
        ends = sorted(end_token_ids)
        try:
            self._table = LLTokenizer(tokenizer.to_str(), eos_token=ends or None)
        except Exception as error:
            raise GrammarError(f"cannot be used with this model's tokenizer: {error}") from error
        self._end_token_ids = frozenset(ends)

    def compile(self, grammar: Grammar, tell_failure: Callable[[str], None]) -> "GrammarConstraint":
        """A constraint at the beginning of an output; raises GrammarError.

        tell_failure: called with the end of a sentence when a later token proves to cost more than
        the limits; the output cannot be completed then.
        """
        matcher = LLMatcher(self._table, _source(grammar), log_level=0, limits=_LIMITS)
        if matcher.is_error():
            raise GrammarError(_describe(grammar.kind, matcher.get_error()))
        constraint = GrammarConstraint(
            matcher, self._table, self._end_token_ids, grammar.kind, tell_failure
        )
        if matcher.is_error():
            raise GrammarError(_describe(grammar.kind, matcher.get_error()))
        return constraint


class GrammarConstraint:
    """A grammar at work on one request's output: a `request.Constraint`; not thread-safe.

    Each mask is computed when the token before it is taken, the first one at once. In a model
    without end tokens any token may follow a complete output, and is its end.
    """

    __slots__ = (
        "_end_token_ids", "_is_complete", "_kind", "_mask", "_matcher", "_table", "_tell_failure",
    )  # fmt: skip

    def __init__(
        self,
        matcher: LLMatcher,
        table: LLTokenizer,
        end_token_ids: Collection[int],
        kind: GrammarKind,
        tell_failure: Callable[[str], None],
    ) -> None:
        self._matcher = matcher
        self._table = table
        self._end_token_ids = end_token_ids
        self._kind = kind
        self._tell_failure = tell_failure
        self._is_complete = False
        self._mask = np.empty(0, np.int32)
        self._compute_mask()

    def mask(self) -> TokenMask:
        """The tokens that may come next; only end tokens once the output is complete."""
        return self._mask

    def accept(self, token_id: int) -> bool:
        """Takes the next token; True when the output is complete and cannot go on."""
        if self._is_complete:
            return True
        if self._matcher.is_error():
            return False
        if self._matcher.consume_token(token_id):
            if token_id in self._end_token_ids:
                return True
            self._compute_mask()
        if self._matcher.is_error():
            self._tell_failure(_describe(self._kind, self._matcher.get_error()))
        return False

    def _compute_mask(self) -> None:
        mask = np.zeros(-(-self._table.vocab_size // 32), np.int32)
        self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        if not self._end_token_ids:
            # llguidance has taken a token for an end that is none to the model.
            bits = mask.view(np.uint32)
            for token_id in self._table.eos_tokens:
                bits[token_id // 32] &= ~np.uint32(1 << token_id % 32)
            self._is_complete = not mask.any()
            if self._is_complete:
                mask.fill(-1)
        self._mask = mask


def _source(grammar: Grammar) -> str:
    """The grammar as llguidance reads it; raises GrammarError."""
    if len(grammar.text) > MAX_GRAMMAR_CHARACTERS:
        raise GrammarError(f"has more than {MAX_GRAMMAR_CHARACTERS} characters")
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
