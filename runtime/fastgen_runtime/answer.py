"""One answer in the making: tokens go in, pieces of text come out."""

from collections.abc import Sequence
from dataclasses import dataclass

from fastgen_runtime.detokenizer import Vocabulary
from fastgen_runtime.request import FinishReason
from fastgen_runtime.step import TokenLogprobs
from fastgen_runtime.stop import StopStrings


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a finished request, of all its choices. cached_tokens: prompt tokens that were in
    the prefix cache."""

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class PromptEcho:
    """The prompt, as far as it was asked for; comes with the first delta of each choice.

    text: empty without `echo`. logprobs: of the tokens from the second on, empty where none are
    wanted.
    """

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class Delta:
    """What is new of one choice.

    text: whole characters only, held back while a stop string may have begun. logprobs: one per
    token, empty where none are wanted. matched_stop: the stop string or stop token id that ended
    it, None where the model's end token or the length did. usage: comes once, with the request's
    last delta.
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

    The text ends before the first stop string; the tokens end with the one that completed it.
    """

    __slots__ = ("_detokenizer", "_num_prompt_tokens", "_stops", "_text", "_token_ids",
                 "finish", "num_output_tokens")  # fmt: skip

    def __init__(
        self, vocabulary: Vocabulary, num_prompt_tokens: int, stops: Sequence[str] = ()
    ) -> None:
        self._detokenizer = vocabulary.detokenizer()
        self._stops = StopStrings(stops)
        self._num_prompt_tokens = num_prompt_tokens
        self._text: list[str] = []
        self._token_ids: list[int] = []
        self.num_output_tokens = 0
        self.finish: FinishReason | None = None

    def push(self, token_id: int, finish: FinishReason | None) -> None:
        """Adds a token; `finish` is set on the last one. Tokens after a stop string are dropped."""
        if self.finish is not None:
            return
        self.num_output_tokens += 1
        self._token_ids.append(token_id)
        # An end token that is no special token has a text, but says nothing.
        text = "" if finish is FinishReason.STOP else self._detokenizer.push(token_id)
        if finish is not None:
            text += self._detokenizer.flush()
        self._text.append(self._stops.push(text))
        if self._stops.matched is not None:
            self.finish = FinishReason.STOP
        elif finish is not None:
            self._text.append(self._stops.flush())
            self.finish = finish

    def take(self) -> Delta:
        """What came since the last call."""
        delta = Delta(
            text="".join(self._text),
            token_ids=tuple(self._token_ids),
            finish=self.finish,
            usage=self._usage_now() if self.finish is not None else None,
        )
        self._text.clear()
        self._token_ids.clear()
        return delta

    def _usage_now(self) -> Usage:
        return Usage(self._num_prompt_tokens, self.num_output_tokens)
