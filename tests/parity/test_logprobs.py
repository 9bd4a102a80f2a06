"""SmolLM2 in float32: log probabilities of prompts and answers are transformers' log_softmax."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from greedy_reference import PROMPTS, reference_model

from fastgen_api.spec import DType
from fastgen_runtime.device.runner import Runner, RunnerConfig
from fastgen_runtime.engine.step import Chunk, ChunkResult, Sampling, Step, TokenLogprobs
from fastgen_runtime.models.checkpoint import Checkpoint, open_checkpoint

NUM_TOP = 5
TOLERANCE = 1e-4
# None of these may show in what the model thought.
SAMPLING = Sampling(
    temperature=0.7,
    top_k=40,
    repetition_penalty=1.3,
    frequency_penalty=0.5,
    logit_bias={7: 50.0},
    num_logprobs=NUM_TOP,
)


@pytest.fixture(scope="module")
def checkpoint(smollm2_path: Path) -> Checkpoint:
    return open_checkpoint(smollm2_path)


@pytest.fixture(scope="module")
def runner(checkpoint: Checkpoint) -> Runner:
    config = RunnerConfig(dtype=DType.FLOAT32, block_size=16, num_blocks=16, threads=1)
    return Runner.load(checkpoint, config)


@pytest.fixture(scope="module")
def prompts(checkpoint: Checkpoint) -> list[list[int]]:
    return [checkpoint.tokenizer.encode(prompt).ids for prompt in (PROMPTS[2], PROMPTS[4])]


@pytest.fixture(scope="module")
def expected(smollm2_path: Path, prompts: list[list[int]]) -> list[torch.Tensor]:
    """Log probabilities [prompt tokens, vocabulary] after each token of each prompt."""
    with torch.inference_mode():
        model = reference_model(smollm2_path)
        return [model(torch.tensor([ids])).logits[0].double().log_softmax(-1) for ids in prompts]


def check(told: TokenLogprobs, token: int, expected: torch.Tensor) -> None:
    """One token's log probabilities against those of the whole vocabulary."""
    assert told.token_id == token
    assert told.logprob == pytest.approx(float(expected[token]), abs=TOLERANCE)
    near = (expected - expected[token]).abs() <= TOLERANCE
    higher = int((expected > expected[token]).sum())
    assert abs(told.rank - 1 - higher) <= int(near.sum()) - 1
    values = [value for _, value in told.top]
    assert values == sorted(values, reverse=True)
    best = expected.topk(NUM_TOP).values.tolist()
    assert values == pytest.approx(best, abs=TOLERANCE)
    assert values == pytest.approx([float(expected[t]) for t, _ in told.top], abs=TOLERANCE)


def pieces(ids: Sequence[int], block_ids: Sequence[int], sizes: Sequence[int]) -> list[Chunk]:
    """The prompt in chunks of these sizes, the last one with what is left."""
    chunks, start = [], 0
    while start < len(ids):
        end = min(len(ids), start + sizes[min(len(chunks), len(sizes) - 1)])
        is_last = end == len(ids)
        chunk = Chunk(
            request_id=str(block_ids),
            token_ids=ids[start:end],
            start=start,
            block_ids=block_ids,
            sampling=SAMPLING if is_last else None,
            prompt_token_ids=ids,
            num_prompt_logprobs=NUM_TOP,
            targets=ids[start + 1 : end + 1],
        )
        chunks.append(chunk)
        start = end
    return chunks


@pytest.mark.parametrize("sizes", [[1000], [3, 1, 7, 2]], ids=["whole", "in chunks"])
def test_prompts_and_next_tokens(
    runner: Runner,
    prompts: list[list[int]],
    expected: list[torch.Tensor],
    sizes: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both prompts in one batch, the first a step behind; logits computed four rows at a time."""
    monkeypatch.setattr("fastgen_runtime.device.runner._SLICE_BYTES", 4 * 4 * 49152)
    blocks = [[3, 1, 7], [0, 9, 2]]
    queues = [pieces(ids, table, sizes) for ids, table in zip(prompts, blocks, strict=True)]
    results: list[list[ChunkResult]] = [[], []]
    for step in range(1 + max(map(len, queues))):
        due = [number for number in (0, 1) if 0 <= step - (number == 0) < len(queues[number])]
        chunks = tuple(queues[number][step - (number == 0)] for number in due)
        for number, result in zip(due, runner.run(Step(chunks)), strict=True):
            results[number].append(result)
    for ids, told, wanted in zip(prompts, results, expected, strict=True):
        prompt_logprobs = [row for result in told for row in result.prompt_logprobs]
        assert len(prompt_logprobs) == len(ids) - 1
        for row, token, distribution in zip(prompt_logprobs, ids[1:], wanted, strict=False):
            check(row, token, distribution)
        assert [result.token_id is None for result in told[:-1]] == [True] * (len(told) - 1)
        last = told[-1]
        assert last.token_id is not None
        assert last.logprobs is not None
        check(last.logprobs, last.token_id, wanted[-1])


def test_nothing_is_told_that_nobody_asked_for(runner: Runner, prompts: list[list[int]]) -> None:
    chunk = Chunk("a", prompts[0], 0, [0, 1, 2], Sampling(temperature=0))
    (result,) = runner.run(Step((chunk,)))
    assert result.logprobs is None
    assert result.prompt_logprobs == ()


def test_the_chosen_token_alone(
    runner: Runner, prompts: list[list[int]], expected: list[torch.Tensor]
) -> None:
    chunk = Chunk("a", prompts[0], 0, [0, 1, 2], Sampling(temperature=0, num_logprobs=0))
    (result,) = runner.run(Step((chunk,)))
    assert result.logprobs is not None
    assert (result.logprobs.rank, result.logprobs.top) == (1, ())
    assert result.logprobs.logprob == pytest.approx(float(expected[0][-1].max()), abs=TOLERANCE)


def test_rows_that_want_different_numbers_are_asked_for_together(
    runner: Runner, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each gets what it would get alone; who wants none gets none."""
    wishes = (2, None, 0, NUM_TOP)
    chunks = [
        Chunk(
            str(row), prompts[row % 2][: 9 - row], 0, [row], Sampling(num_logprobs=wish, seed=row)
        )
        for row, wish in enumerate(wishes)
    ]
    alone = [runner.run(Step((chunk,)))[0] for chunk in chunks]
    calls = []
    kernel = runner._kernels.logprobs

    def counted(*arguments: Any) -> Any:
        calls.append(arguments[1])
        return kernel(*arguments)

    monkeypatch.setattr(runner, "_kernels", replace(runner._kernels, logprobs=counted))
    together = runner.run(Step(tuple(chunks)))
    assert len(calls) == 1
    for wish, one, other in zip(wishes, alone, together, strict=True):
        assert one.token_id == other.token_id
        if wish is None:
            assert one.logprobs is None
            assert other.logprobs is None
            continue
        assert one.logprobs is not None
        assert other.logprobs is not None
        assert len(other.logprobs.top) == wish
        assert other.logprobs.rank == one.logprobs.rank
        assert [token for token, _ in other.logprobs.top] == [t for t, _ in one.logprobs.top]
        told = (other.logprobs.logprob, *(value for _, value in other.logprobs.top))
        expected = (one.logprobs.logprob, *(value for _, value in one.logprobs.top))
        assert told == pytest.approx(expected, abs=TOLERANCE)


def test_more_targets_than_tokens_are_an_error(runner: Runner) -> None:
    chunk = Chunk("a", [5, 6], 0, [0], None, num_prompt_logprobs=0, targets=[1, 2, 3])
    with pytest.raises(ValueError, match="more targets than tokens"):
        runner.run(Step((chunk,)))


def test_the_padding_of_an_embedding_is_never_chosen(checkpoint: Checkpoint) -> None:
    """The model's favourites taken for padding: neither chosen nor told."""
    config = RunnerConfig(
        dtype=DType.FLOAT32, block_size=16, num_blocks=4, threads=1, vocabulary=300
    )
    runner = Runner.load(checkpoint, config)
    ids = checkpoint.tokenizer.encode(PROMPTS[0]).ids
    for sampling in (Sampling(temperature=0, num_logprobs=3), Sampling(num_logprobs=3)):
        (result,) = runner.run(Step((Chunk("a", ids, 0, [0, 1], sampling),)))
        assert result.token_id is not None
        assert result.logprobs is not None
        assert max(result.token_id, *(token for token, _ in result.logprobs.top)) < 300
