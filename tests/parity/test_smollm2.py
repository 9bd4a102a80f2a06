"""SmolLM2 in float32: our logits and greedy tokens are transformers'."""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from greedy_reference import PROMPTS, greedy_ids, reference_model, reference_tokenizer

from fastgen_api.spec import DType
from fastgen_runtime.device.runner import Runner, RunnerConfig
from fastgen_runtime.engine.step import Chunk, Sampling, Step
from fastgen_runtime.models.checkpoint import Checkpoint, open_checkpoint

NUM_TOKENS = 40
GREEDY = Sampling(temperature=0)
BLOCK_SIZE = 16
NUM_BLOCKS = 64


@pytest.fixture(scope="module")
def checkpoint(smollm2_path: Path) -> Checkpoint:
    return open_checkpoint(smollm2_path)


@pytest.fixture(scope="module")
def runner(checkpoint: Checkpoint) -> Runner:
    config = RunnerConfig(
        dtype=DType.FLOAT32, block_size=BLOCK_SIZE, num_blocks=NUM_BLOCKS, threads=1
    )
    return Runner.load(checkpoint, config)


@pytest.fixture(autouse=True)
def poisoned(runner: Runner) -> None:
    """What nobody wrote is NaN, so that a read of it shows."""
    runner.cache.fill_(torch.nan)


@pytest.fixture(scope="module")
def prompts(checkpoint: Checkpoint) -> list[list[int]]:
    return [checkpoint.tokenizer.encode(prompt).ids for prompt in PROMPTS]


@pytest.fixture(scope="module")
def expected(smollm2_path: Path, prompts: list[list[int]]) -> list[list[int]]:
    model = reference_model(smollm2_path)
    return [greedy_ids(model, prompt, NUM_TOKENS) for prompt in prompts]


class Stream:
    """A request that is fed chunk by chunk, with a block table of shuffled blocks."""

    def __init__(self, name: int, prompt: Sequence[int], blocks: list[int]) -> None:
        self.name = str(name)
        self.prompt_length = len(prompt)
        self.ids = list(prompt)
        self.computed = 0
        self.blocks = blocks

    def chunk(self, most: int) -> Chunk:
        ids = self.ids[self.computed : self.computed + most]
        end = self.computed + len(ids)
        sampling = GREEDY if end == len(self.ids) else None
        return Chunk(self.name, ids, self.computed, self.blocks, sampling)

    def commit(self, chunk: Chunk, token: int | None) -> None:
        self.computed = chunk.start + len(chunk.token_ids)
        assert (token is None) == (chunk.sampling is None)
        if token is not None:
            self.ids.append(token)

    @property
    def output(self) -> list[int]:
        return self.ids[self.prompt_length :][:NUM_TOKENS]


def streams_of(prompts: list[list[int]], seed: int) -> list[Stream]:
    blocks = list(range(NUM_BLOCKS))
    random.Random(seed).shuffle(blocks)
    streams = []
    for name, prompt in enumerate(prompts):
        count = -(-(len(prompt) + NUM_TOKENS) // BLOCK_SIZE)
        streams.append(Stream(name, prompt, blocks[:count]))
        blocks = blocks[count:]
    return streams


def advance(runner: Runner, streams: list[Stream], sizes: Sequence[int]) -> None:
    """One step in which stream i may have a chunk of up to sizes[i] tokens."""
    chunks = [stream.chunk(size) for stream, size in zip(streams, sizes, strict=True)]
    results = runner.run(Step(tuple(chunks)))
    for stream, chunk, result in zip(streams, chunks, results, strict=True):
        stream.commit(chunk, result.token_id)


def test_reference_and_checkpoint_agree_on_the_prompts(
    smollm2_path: Path, prompts: list[list[int]]
) -> None:
    tokenizer = reference_tokenizer(smollm2_path)
    assert prompts == [tokenizer(prompt)["input_ids"] for prompt in PROMPTS]


@pytest.mark.parametrize(
    ("most", "num_tokens"),
    [(1000, NUM_TOKENS), (1, 6), (3, 6), (7, 6)],
    ids=["whole", "by 1", "by 3", "by 7"],
)
def test_greedy_alone(
    runner: Runner,
    prompts: list[list[int]],
    expected: list[list[int]],
    most: int,
    num_tokens: int,
) -> None:
    """Chunks matter for the prompt only: after odd ones a few tokens tell."""
    for number, stream in enumerate(streams_of(prompts, seed=most)):
        while len(stream.output) < num_tokens:
            advance(runner, [stream], [most])
        assert stream.output == expected[number][:num_tokens]


@pytest.mark.parametrize("seed", range(2))
def test_greedy_in_ragged_mixed_batches(
    runner: Runner, prompts: list[list[int]], expected: list[list[int]], seed: int
) -> None:
    """Requests join at different steps, with odd chunks, in shuffled order."""
    dice = random.Random(seed)
    streams = streams_of(prompts, seed)
    running: list[Stream] = []
    waiting = list(streams)
    while waiting or running:
        if waiting and (not running or dice.random() < 0.3):
            running.append(waiting.pop())
        dice.shuffle(running)
        advance(runner, running, [dice.choice([1, 2, 3, 5, 9]) for _ in running])
        running = [stream for stream in running if len(stream.output) < NUM_TOKENS]
    assert [stream.output for stream in streams] == expected


def test_logits(smollm2_path: Path, runner: Runner, prompts: list[list[int]]) -> None:
    """The largest difference over the vocabulary, at the end of each prompt, all in one batch."""
    chunks = [stream.chunk(1000) for stream in streams_of(prompts, seed=5)]
    ours = runner.logits(chunks, list(range(len(chunks))))
    with torch.inference_mode():
        model = reference_model(smollm2_path)
        theirs = torch.stack([model(torch.tensor([ids])).logits[0, -1] for ids in prompts])
    assert (ours - theirs).abs().max() < 1e-3
