"""Script mode: a model in this process, without a server, as DeepSpeed-MII's pipeline.

The engine is the server's: the same scheduler, blocks and runner, and the same answers.
"""

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Final, Self, TypeVar, Unpack

from fastgen_api.names import StartupFailure
from fastgen_api.spec import BudgetMode, DType, Quantization, Speculation, most_step_tokens
from fastgen_runtime.engine import cores
from fastgen_runtime.engine.engine import Engine, Load
from fastgen_runtime.engine.plan import Limits
from fastgen_runtime.engine.request import FinishReason, NewRequest
from fastgen_runtime.engine.runner_config import CpuStepUse
from fastgen_runtime.engine.step import TokenLogprobs
from fastgen_runtime.front.admission import new_request
from fastgen_runtime.front.answer import Answer
from fastgen_runtime.front.generation import Generation, RequestError, invalid
from fastgen_runtime.front.generation_check import check
from fastgen_runtime.models.capacity import model_length
from fastgen_runtime.models.checkpoint import Checkpoint, open_checkpoint
from fastgen_runtime.script_parameters import (
    Parameters,
    name_as_here,
    read_parameters,
    to_generation,
)
from fastgen_runtime.sources.fetch import fetch
from fastgen_runtime.startup_error import StartupError
from fastgen_runtime.text.detokenizer import Vocabulary
from fastgen_runtime.text.tokenizer import num_token_ids

_Choice = TypeVar("_Choice", DType, Quantization, BudgetMode, CpuStepUse, Speculation)
_QUEUE: Final = 1 << 20
"""Prompts of one call that may wait: the caller waits anyway."""


@dataclass(frozen=True, slots=True)
class Response:
    """One prompt's answer; as a string it is its text. Lengths in tokens.

    finish_reason: `stop` or `length`. logprobs: of each token, where they were asked for.
    """

    generated_text: str
    prompt_length: int
    generated_length: int
    finish_reason: FinishReason
    logprobs: tuple[TokenLogprobs, ...] = ()

    def __str__(self) -> str:
        return self.generated_text


class DestroyedError(RuntimeError):
    """The pipeline holds no model any more."""


@dataclass(slots=True)
class _Draft:
    """A response in the making."""

    number: int
    answer: Answer
    text: str
    logprobs: list[TokenLogprobs]


class Pipeline:
    """Prompts in, responses out; not thread-safe. Made by `fastgen_runtime.pipeline`.

    As a context manager it is destroyed at the end.
    """

    def __init__(self, checkpoint: Checkpoint, engine: Engine, close: Callable[[], None]) -> None:
        """close: ends what computes beside this process."""
        self._model: tuple[Checkpoint, Engine, Vocabulary] | None = (
            checkpoint,
            engine,
            Vocabulary(checkpoint.tokenizer),
        )
        self._close = close
        self._num_requests = 0

    def __call__(
        self,
        prompts: str | Sequence[str],
        *,
        on_token: Callable[[int, str], None] | None = None,
        **parameters: Unpack[Parameters],
    ) -> list[Response]:
        """The prompts' answers, in their order, made in one ragged batch.

        parameters: see `script_parameters.Parameters`. on_token: called with a prompt's number and
        each new piece of its text. Raises TypeError for a parameter that does not exist or is of
        the wrong type, RequestError naming one whose value is wrong; then nothing was computed.
        """
        given = read_parameters(parameters)
        _, engine, vocabulary = self._loaded()
        prompts = [prompts] if isinstance(prompts, str) else list(prompts)
        drafts: dict[str, _Draft] = {}
        requests = []
        for number, prompt in enumerate(prompts):
            try:
                generation = to_generation(prompt, number, given)
                request = self._request(generation, prompt, given.get("max_length"))
            except RequestError as error:
                raise name_as_here(error) from None
            requests.append(request)
            answer = Answer(
                vocabulary,
                len(request.prompt_token_ids),
                generation.stop,
                min_tokens=generation.min_tokens,
                stop_token_ids=generation.stop_token_ids,
            )
            text = prompt if given.get("return_full_text") else ""
            drafts[request.request_id] = _Draft(number, answer, text, [])
        try:
            for request in requests:
                if refusal := engine.add(request):
                    raise invalid("prompts", refusal.message)
            responses = _run(engine, drafts, on_token or _ignore)
        finally:  # also when the caller interrupts: the engine must not go on with these
            for request in requests:
                engine.abort(request.request_id)
        return [responses[number] for number in range(len(prompts))]

    def load(self) -> Load:
        """What the engine holds; between two calls it holds nothing but cached prefixes."""
        return self._loaded()[1].load()

    def destroy(self) -> None:
        """Frees weights and cache; the pipeline cannot be called any more."""
        self._close()
        self._close = _nothing
        self._model = None
        gc.collect()
        cores.give_back_memory()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.destroy()

    def _loaded(self) -> tuple[Checkpoint, Engine, Vocabulary]:
        if self._model is None:
            raise DestroyedError("this pipeline was destroyed: make another")
        return self._model

    def _request(self, generation: Generation, prompt: str, max_length: int | None) -> NewRequest:
        checkpoint, engine, _ = self._loaded()
        if generation.max_tokens == 0:
            raise invalid("max_tokens", "must be 1 or more, not 0")
        check(generation, checkpoint.config.vocab_size)
        token_ids = checkpoint.tokenizer.encode(prompt).ids
        if not token_ids:
            raise invalid("prompts", "holds an empty one: it must have at least one token")
        if max_length is not None and max_length <= len(token_ids):
            raise invalid(
                "max_length", f"is {max_length}, and a prompt has {len(token_ids)} tokens already"
            )
        self._num_requests += 1
        most = engine.max_length
        return new_request(
            generation,
            str(self._num_requests),
            token_ids,
            most if max_length is None else min(most, max_length),
            checkpoint.generation_defaults,
        )


def _run(
    engine: Engine, drafts: dict[str, _Draft], on_token: Callable[[int, str], None]
) -> dict[int, Response]:
    """The responses by their prompts' numbers."""
    responses: dict[int, Response] = {}
    while engine.has_work:
        for token in engine.step().committed.tokens:
            draft = drafts[token.request_id]
            draft.answer.push(token.token_id, token.finish, token.logprobs)
            delta = draft.answer.take()
            draft.text += delta.text
            draft.logprobs += delta.logprobs
            if delta.text:
                on_token(draft.number, delta.text)
            if delta.finish is None or delta.usage is None:
                continue
            if token.finish is None:  # a stop string, which the engine knows nothing of
                engine.abort(token.request_id)
            responses[draft.number] = Response(
                draft.text,
                delta.usage.prompt_tokens,
                delta.usage.output_tokens,
                delta.finish,
                tuple(draft.logprobs),
            )
    return responses


def load_pipeline(
    model: str,
    *,
    dtype: str = DType.AUTO,
    quantization: str = Quantization.AUTO,
    max_model_length: int | None = None,
    max_concurrent_requests: int = 64,
    kv_block_size: int = 64,
    token_budget_mode: str = BudgetMode.FIXED,
    token_budget: int | None = None,
    prefix_caching: bool = True,
    speculation: str = Speculation.NONE,
    memory_percent: int = 50,
    tensor_parallel_size: int = 1,
    cpu_step: str = CpuStepUse.AUTO,
) -> Pipeline:
    """Loads the model that the source names; raises StartupError.

    The settings are those of `fastgen-runtime`. token_budget_mode: `Fixed`, since nobody reads
    along at a pace that `Auto` could keep.
    """
    cores.limit_threads(max(1, cores.available_threads() // max(1, tensor_parallel_size)))
    from fastgen_runtime.device.runner import Runner, RunnerConfig

    mode = _one_of(BudgetMode, "token_budget_mode", token_budget_mode)
    budget = most_step_tokens(mode, token_budget)
    config = RunnerConfig(
        dtype=_one_of(DType, "dtype", dtype),
        quantization=_one_of(Quantization, "quantization", quantization),
        block_size=kv_block_size,
        max_model_length=max_model_length,
        max_concurrent_requests=max_concurrent_requests,
        max_step_tokens=budget,
        memory_percent=memory_percent,
        tensor_parallel_size=tensor_parallel_size,
        cpu_step=_one_of(CpuStepUse, "cpu_step", cpu_step),
    )
    checkpoint = open_checkpoint(fetch(model))
    limits = Limits(
        budget_tokens=budget,
        max_running=min(max_concurrent_requests, budget),
        max_waiting=_QUEUE,
        max_length=model_length(checkpoint.config, max_model_length),
        budget_mode=mode,
        prefix_caching=prefix_caching,
        speculation=_one_of(Speculation, "speculation", speculation),
    )
    config = replace(config, vocabulary=num_token_ids(checkpoint.tokenizer))
    runner = Runner.load(checkpoint, config)
    engine = Engine(runner, limits, checkpoint.eos_token_ids)
    return Pipeline(checkpoint, engine, runner.close)


def _one_of(kind: type[_Choice], name: str, value: str) -> _Choice:
    try:
        return kind(value)
    except ValueError:
        raise StartupError(
            StartupFailure.CONFIG_INVALID,
            f"{name} is {value!r}; it must be one of {', '.join(kind)}",
        ) from None


def _nothing() -> None:
    pass


def _ignore(number: int, text: str) -> None:
    pass
