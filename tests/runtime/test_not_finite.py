"""Logits that are no numbers end the request that brought them about, and hurt no other."""

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import TINY_MODELS

from fastgen_api.spec import DType
from fastgen_runtime.device.runner import Runner, RunnerConfig
from fastgen_runtime.engine.engine import Engine
from fastgen_runtime.engine.plan import Limits
from fastgen_runtime.engine.request import NewRequest, Refusal, RefusalKind
from fastgen_runtime.engine.runner_config import CpuStepUse
from fastgen_runtime.engine.step import Sampling
from fastgen_runtime.models.checkpoint import open_checkpoint

TOO_LARGE = 77
"""A token whose embedding is too large for the dtype."""
PREFIX = list(range(10, 18))
LIMITS = Limits(budget_tokens=12, max_running=8, max_waiting=8, max_length=64)


WAYS = {
    "by kernels": ({}, 1e6, RunnerConfig(dtype=DType.FLOAT16, block_size=4)),
    "by one op": (
        {"hidden_size": 96, "intermediate_size": 96},
        math.inf,
        RunnerConfig(dtype=DType.FLOAT32, block_size=16, cpu_step=CpuStepUse.AUTO),
    ),
}
"""Changes of the model, what the token's embedding is, and how it computes."""


@pytest.fixture(scope="module", params=WAYS)
def runner(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Runner]:
    folder = tmp_path_factory.mktemp("model")
    changes, value, config = WAYS[request.param]
    tiny = TINY_MODELS["llama, grouped heads"]
    replace(tiny, options=tiny.options | changes).save(folder)
    file = folder / "model.safetensors"
    weights = load_file(file)
    weights["model.embed_tokens.weight"][TOO_LARGE] = value
    save_file(weights, file, {"format": "pt"})
    loaded = Runner.load(open_checkpoint(folder), replace(config, num_blocks=40, threads=1))
    yield loaded
    loaded.close()


def ask(request_id: str, prompt: list[int], num_prompt_logprobs: int | None = None) -> NewRequest:
    return NewRequest(
        request_id,
        prompt,
        8,
        # Never chosen by those that do not have it in their prompt.
        Sampling(temperature=0, num_logprobs=2, logit_bias={TOO_LARGE: -100.0}),
        ignore_eos=True,
        num_prompt_logprobs=num_prompt_logprobs,
    )


GOOD = [
    ask("short", [3, 4, 5]),
    ask("alike", [*PREFIX, 20]),
    ask("told", [*PREFIX[:5], 30, 31], num_prompt_logprobs=1),
]
BAD = [
    ask("last", [*PREFIX, TOO_LARGE]),
    ask("first", [TOO_LARGE, *PREFIX, *PREFIX]),
    ask("asking", [*PREFIX, TOO_LARGE, 4, 5], num_prompt_logprobs=1),
]


def answer(
    engine: Engine, news: list[NewRequest]
) -> tuple[dict[str, list[int]], dict[str, Refusal]]:
    tokens: dict[str, list[int]] = {}
    failed: dict[str, Refusal] = {}
    for new in news:
        assert engine.add(new) is None
    while engine.has_work:
        committed = engine.step().committed
        failed.update(committed.failed)
        for token in committed.tokens:
            tokens.setdefault(token.request_id, []).append(token.token_id)
        engine.check()
    assert engine.load().num_free_blocks == 40
    return tokens, failed


def test_a_request_whose_logits_are_no_numbers_fails_alone(runner: Runner) -> None:
    runner.cache.fill_(torch.nan)
    alone, none = answer(Engine(runner, LIMITS), GOOD)
    assert [len(tokens) for tokens in alone.values()] == [8, 8, 8]
    assert not none
    engine = Engine(runner, LIMITS)
    mixed = [new for pair in zip(BAD, GOOD, strict=True) for new in pair]
    for _ in range(2):  # the second time in blocks that the failed ones had
        tokens, failed = answer(engine, mixed)
        assert tokens == alone
        assert {name: refusal.kind for name, refusal in failed.items()} == dict.fromkeys(
            ("last", "first", "asking"), RefusalKind.FAILED
        )
        assert all("dtype" in refusal.message for refusal in failed.values())


def test_what_a_failed_request_computed_is_found_by_nobody(runner: Runner) -> None:
    engine, cached = Engine(runner, LIMITS), 0
    # Its first block is computed a step before it fails.
    prompt = [*PREFIX, *PREFIX, TOO_LARGE]
    assert len(prompt) > LIMITS.budget_tokens
    answer(engine, [ask("bad", prompt)])
    assert engine.add(ask("next", prompt)) is None
    while engine.has_work:
        cached += engine.step().num_cached_tokens
    assert cached == 0
