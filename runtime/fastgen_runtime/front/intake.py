"""Turns what a client asks for into requests of the engine and the answers that they will fill."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from fastgen_runtime.engine.grammar import check_grammar
from fastgen_runtime.engine.request import Grammar, NewRequest
from fastgen_runtime.front.admission import (
    check_num_logprobs,
    check_size,
    new_request,
    requests_of_choices,
)
from fastgen_runtime.front.answer import Answer, PromptEcho
from fastgen_runtime.front.generation import (
    ErrorKind,
    Generation,
    RequestError,
    TextPrompt,
    TokenPrompt,
    invalid,
)
from fastgen_runtime.front.generation_check import check
from fastgen_runtime.front.goodness import TokenTimes
from fastgen_runtime.front.prompt import PromptEncoder
from fastgen_runtime.front.stream import Choice, Stream
from fastgen_runtime.models.checkpoint import Checkpoint
from fastgen_runtime.text.detokenizer import Vocabulary


class Intake:
    """Knows the model's tokenizer, vocabulary and defaults; holds no request."""

    def __init__(self, checkpoint: Checkpoint, served_name: str) -> None:
        self.encoder = PromptEncoder(checkpoint)
        self.vocabulary = Vocabulary(checkpoint.tokenizer)
        self._served_name = served_name
        self._vocabulary_size = checkpoint.config.vocab_size
        self._defaults = checkpoint.generation_defaults
        self._grammars = ThreadPoolExecutor(1, thread_name_prefix="grammar")

    def check(self, generation: Generation, max_length: int, num_prompts: int = 1) -> None:
        """Raises RequestError for all that can be seen without working on it."""
        if not generation.model_judged and generation.model not in ("", self._served_name):
            name = generation.model[:128]
            message = f"model {name!r} is not served here; this is {self._served_name!r}"
            raise RequestError(ErrorKind.UNKNOWN_MODEL, message, "model")
        check(generation, self._vocabulary_size)
        check_size(generation.prompt, max_length, self.encoder.text_bound)
        if isinstance(generation.prompt, TokenPrompt):
            num_tokens = len(generation.prompt.token_ids)
            check_num_logprobs(generation, num_prompts, num_tokens, max_length)

    async def begin(
        self, generation: Generation, stream: Stream, max_length: int, num_prompts: int = 1
    ) -> list[NewRequest]:
        """The engine's requests, one per choice, and the stream ready for their tokens.

        num_prompts: of the whole response.
        """
        if generation.grammar is not None:
            await self._check_grammar(generation.grammar)
        token_ids = await self.encoder.encode(generation.prompt)
        stream.check()
        timings = stream.timings
        timings.prompt_tokens = len(token_ids)
        first = new_request(
            generation,
            stream.engine_id,
            token_ids,
            max_length,
            self._defaults,
            timings.arrived,
        )
        check_num_logprobs(generation, num_prompts, len(token_ids), max_length)
        requests = requests_of_choices(first, stream.num_choices)
        timings.choices = [TokenTimes() for _ in requests]
        choices = []
        for index, request in enumerate(requests):
            answer = self._answer(generation, index, len(token_ids))
            choices.append(
                Choice(stream, request.request_id, index, timings.choices[index], answer)
            )
        wants_logprobs = generation.num_prompt_logprobs is not None
        stream.begin(choices, self._echo(generation, token_ids), wants_logprobs)
        return requests

    def close(self) -> None:
        self.encoder.close()
        self._grammars.shutdown(wait=False, cancel_futures=True)

    async def _check_grammar(self, grammar: Grammar) -> None:
        """In a thread: the largest take a second, in which others' tokens go on."""
        check = asyncio.get_running_loop().run_in_executor(self._grammars, check_grammar, grammar)
        if problem := await check:
            raise invalid("grammar", problem)

    def _answer(self, generation: Generation, index: int, num_prompt_tokens: int) -> Answer:
        return Answer(
            self.vocabulary,
            num_prompt_tokens,
            generation.stop,
            index=index,
            min_tokens=generation.min_tokens,
            stop_token_ids=generation.stop_token_ids,
            shown_token_ids=generation.shown_token_ids,
            is_empty=generation.max_tokens == 0,
        )

    def _echo(self, generation: Generation, token_ids: list[int]) -> PromptEcho | None:
        if not generation.echo:
            is_told = generation.num_prompt_logprobs is not None or generation.tells_prompt_ids
            return PromptEcho("", tuple(token_ids)) if is_told else None
        match generation.prompt:
            case TextPrompt(text):
                return PromptEcho(text, tuple(token_ids))
            case _:
                return PromptEcho(self.vocabulary.text_of(token_ids), tuple(token_ids))
