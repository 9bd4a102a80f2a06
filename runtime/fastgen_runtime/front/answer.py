"""One answer in the making: tokens go in, pieces of text come out."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import msgspec

from fastgen_runtime.engine.request import FinishReason
from fastgen_runtime.engine.step import TokenLogprobs
from fastgen_runtime.front.stop import StopStrings
from fastgen_runtime.text.detokenizer import Vocabulary


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a finished request, of all its choices. cached_tokens: prompt tokens that were in
    the prefix cache."""

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0


def sum_of(usages: Iterable[Usage]) -> Usage:
    """The usage of a response to several prompts."""
    prompt = output = cached = 0
    for usage in usages:
        prompt += usage.prompt_tokens
        output += usage.output_tokens
        cached += usage.cached_tokens
    return Usage(prompt, output, cached)


@dataclass(frozen=True, slots=True)
class PromptEcho:
    """The prompt, as far as it was asked for; comes with the first delta of each choice.

    text: empty without `echo`. logprobs: of the tokens from the second on, empty where none are
    wanted.
    """

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()


class Delta(msgspec.Struct, frozen=True):
    """What is new of one choice.

    text: of the answer, without the prompt's; whole characters only, held back while a stop string
    may have begun. token_ids: told when they come, even where their text is held back, so that the
    texts may lag behind the tokens until the last delta. logprobs: one per token of this delta,
    empty where none are wanted. matched_stop: the stop string or stop token id that ended it, None
    where the model's end token or the length did. usage: comes once, with the request's last delta.
    prompt: with the choice's first delta, where echo or prompt log probabilities are wanted.
    """

    text: str
    token_ids: tuple[int, ...]
    finish: FinishReason | None = None
    usage: Usage | None = None
    index: int = 0
    logprobs: tuple[TokenLogprobs, ...] = ()
    matched_stop: str | int | None = None
    prompt: PromptEcho | None = None


class Answer:
    """Collects tokens between two `take`s.

    The text ends before the first stop string; the tokens end with the one that completed it. A
    stop string counts when a token after the first `min_tokens` completes it, as an end token does.
    """

    __slots__ = ("_detokenizer", "_index", "_is_empty", "_logprobs", "_min_tokens",
                 "_num_prompt_tokens", "_stop_token_ids", "_stops", "_text", "_token_ids",
                 "cached_tokens", "finish", "matched_stop", "num_output_tokens")  # fmt: skip

    def __init__(
        self,
        vocabulary: Vocabulary,
        num_prompt_tokens: int,
        stops: Sequence[str] = (),
        *,
        index: int = 0,
        min_tokens: int = 0,
        stop_token_ids: Collection[int] = (),
        shown_token_ids: Collection[int] = (),
        is_empty: bool = False,
    ) -> None:
        """stop_token_ids: those that the client named, to tell which of them ended the answer.
        shown_token_ids: special tokens that have a text. is_empty: the first token ends it and is
        not told, since only the prompt was wanted.
        """
        self._detokenizer = vocabulary.detokenizer(shown_token_ids)
        self._stops = StopStrings(stops) if stops else None
        self._stop_token_ids = stop_token_ids
        self._min_tokens = min_tokens
        self._num_prompt_tokens = num_prompt_tokens
        self._index = index
        self._is_empty = is_empty
        self._text = ""
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprobs] = []
        self.cached_tokens = 0
        self.num_output_tokens = 0
        self.finish: FinishReason | None = None
        self.matched_stop: str | int | None = None

    def push(
        self, token_id: int, finish: FinishReason | None, logprobs: TokenLogprobs | None = None
    ) -> None:
        """Adds a token; `finish` is set on the last one. Tokens after a stop string are dropped."""
        if self.finish is not None:
            return
        if self._is_empty:
            self.finish = FinishReason.LENGTH
            return
        self.num_output_tokens += 1
        self._token_ids.append(token_id)
        if logprobs is not None:
            self._logprobs.append(logprobs)
        # An end token that is no special token has a text, but says nothing.
        text = "" if finish is FinishReason.STOP else self._detokenizer.push(token_id)
        if finish is not None:
            text += self._detokenizer.flush()
        stops = self._stops
        if stops is not None:
            text = stops.push(text, self.num_output_tokens > self._min_tokens)
            if stops.matched is not None:
                self.finish, self.matched_stop = FinishReason.STOP, stops.matched
            elif finish is not None:
                text += stops.flush()
        if finish is not None and self.finish is None:
            self.finish = finish
            if finish is FinishReason.STOP and token_id in self._stop_token_ids:
                self.matched_stop = token_id
        if text:
            self._text += text

    def take(self, prompt: PromptEcho | None = None) -> Delta:
        """What came since the last call, this answer's own usage at its end; `prompt` goes with
        it."""
        finish = self.finish
        delta = Delta(
            self._text,
            tuple(self._token_ids),
            finish,
            None if finish is None else self._usage(),
            self._index,
            tuple(self._logprobs),
            self.matched_stop,
            prompt,
        )
        self._text = ""
        self._token_ids.clear()
        self._logprobs.clear()
        return delta

    def _usage(self) -> Usage:
        return Usage(self._num_prompt_tokens, self.num_output_tokens, self.cached_tokens)
