"""Script mode: a model in this process, without a server, as DeepSpeed-MII's pipeline.

The engine is the server's: the same scheduler, blocks and runner, and the same answers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from fastgen_api.spec import DType
from fastgen_runtime import cores
from fastgen_runtime.admission import new_request
from fastgen_runtime.answer import Answer
from fastgen_runtime.capacity import model_length
from fastgen_runtime.checkpoint import Checkpoint, open_checkpoint
from fastgen_runtime.detokenizer import Vocabulary
from fastgen_runtime.engine import Engine
from fastgen_runtime.fetch import fetch
from fastgen_runtime.generation import Generation, TextPrompt, check, invalid
from fastgen_runtime.plan import Limits
from fastgen_runtime.request import FinishReason, NewRequest

_QUEUE: Final = 1 << 20
"""Prompts of one call that may wait: the caller waits anyway."""


@dataclass(frozen=True, slots=True)
class Response:
    """One prompt's answer; lengths in tokens. finish_reason: `stop` or `length`."""

    generated_text: str
    prompt_length: int
    generated_length: int
    finish_reason: FinishReason


class Pipeline:
    """Prompts in, responses out; not thread-safe. Made by `fastgen_runtime.pipeline`."""

    def __init__(self, checkpoint: Checkpoint, engine: Engine) -> None:
        self._checkpoint = checkpoint
        self._engine = engine
        self._vocabulary = Vocabulary(checkpoint.tokenizer)
        self._num_requests = 0

    def __call__(
        self,
        prompts: str | Sequence[str],
        *,
        max_new_tokens: int | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        seed: int | None = None,
        stop: Sequence[str] = (),
        ignore_eos: bool = False,
        on_token: Callable[[int, str], None] | None = None,
    ) -> list[Response]:
        """The prompts' answers, in their order, made in one ragged batch.

        None takes the model's default; with a seed, prompt number i is drawn with seed + i.
        on_token: called with a prompt's number and each new piece of its text. Raises RequestError
        naming the parameter that is wrong; then nothing was computed.
        """
        prompts = [prompts] if isinstance(prompts, str) else list(prompts)
        answers: dict[str, tuple[int, Answer]] = {}
        requests = []
        for number, prompt in enumerate(prompts):
            generation = Generation(
                prompt=TextPrompt(prompt),
                max_tokens=max_new_tokens,
                temperature=temperature,
                top_p=top_p,
                seed=None if seed is None else seed + number,
                stop=stop,
                ignore_eos=ignore_eos,
            )
            request = self._request(generation, prompt)
            requests.append(request)
            answer = Answer(self._vocabulary, len(request.prompt_token_ids), stop)
            answers[request.request_id] = (number, answer)
        responses: dict[int, Response] = {}
        try:
            for request in requests:
                if refusal := self._engine.add(request):
                    raise invalid("prompts", refusal.message)
            self._run(answers, responses, on_token or _ignore)
        finally:  # also when the caller interrupts: the engine must not go on with these
            for request in requests:
                self._engine.abort(request.request_id)
        return [responses[number] for number in range(len(prompts))]

    def _request(self, generation: Generation, prompt: str) -> NewRequest:
        check(generation)
        token_ids = self._checkpoint.tokenizer.encode(prompt).ids
        if not token_ids:
            raise invalid("prompts", "holds an empty one: it must have at least one token")
        self._num_requests += 1
        return new_request(
            generation,
            str(self._num_requests),
            token_ids,
            self._engine.max_length,
            self._checkpoint.generation_defaults,
        )

    def _run(
        self,
        answers: dict[str, tuple[int, Answer]],
        responses: dict[int, Response],
        on_token: Callable[[int, str], None],
    ) -> None:
        texts: dict[int, list[str]] = {number: [] for number, _ in answers.values()}
        while self._engine.has_work:
            for token in self._engine.step().committed.tokens:
                number, answer = answers[token.request_id]
                answer.push(token.token_id, token.finish)
                delta = answer.take()
                texts[number].append(delta.text)
                if delta.text:
                    on_token(number, delta.text)
                if delta.finish is None or delta.usage is None:
                    continue
                if token.finish is None:  # a stop string, which the engine knows nothing of
                    self._engine.abort(token.request_id)
                responses[number] = Response(
                    "".join(texts[number]),
                    delta.usage.prompt_tokens,
                    delta.usage.output_tokens,
                    delta.finish,
                )


def load_pipeline(
    model: str,
    *,
    dtype: str = DType.AUTO,
    max_model_length: int | None = None,
    max_concurrent_requests: int = 64,
    kv_block_size: int = 64,
    token_budget: int = 512,
    memory_percent: int = 50,
) -> Pipeline:
    """Loads the model that the source names; raises StartupError."""
    cores.limit_threads(cores.available_threads())
    from fastgen_runtime.runner import Runner, RunnerConfig

    checkpoint = open_checkpoint(fetch(model))
    config = RunnerConfig(
        dtype=DType(dtype),
        block_size=kv_block_size,
        max_model_length=max_model_length,
        max_concurrent_requests=max_concurrent_requests,
        max_step_tokens=token_budget,
        memory_percent=memory_percent,
    )
    limits = Limits(
        budget_tokens=token_budget,
        max_running=min(max_concurrent_requests, token_budget),
        max_waiting=_QUEUE,
        max_length=model_length(checkpoint.config, max_model_length),
    )
    runner = Runner.load(checkpoint, config)
    return Pipeline(checkpoint, Engine(runner, limits, checkpoint.eos_token_ids))


def _ignore(number: int, text: str) -> None:
    pass
