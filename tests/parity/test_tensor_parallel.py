"""Two ranks say what one does, and tell which of them is lost."""

import os
import random
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_model import write_tiny_model
from tiny_models import TINY_MODELS, VOCABULARY

import fastgen_runtime
from fastgen_api.names import StartupFailure
from fastgen_api.spec import DType
from fastgen_runtime.device import ranks
from fastgen_runtime.device.runner import Runner, RunnerConfig
from fastgen_runtime.engine.engine import Engine
from fastgen_runtime.engine.plan import Limits
from fastgen_runtime.engine.rank_channel import RankError
from fastgen_runtime.engine.request import NewRequest
from fastgen_runtime.engine.step import Chunk, Sampling, TokenLogprobs
from fastgen_runtime.models.checkpoint import Checkpoint, open_checkpoint
from fastgen_runtime.startup_error import StartupError

NAMES = (
    "llama, one key head, tied, head_dim 12",
    "qwen3, biases, layer types",
    "mixtral",
    "gpt-neox",
)
Told = tuple[list[int], list[TokenLogprobs]]
ONE = RunnerConfig(dtype=DType.FLOAT32, block_size=8, num_blocks=40, max_model_length=64, threads=1)
TWO = replace(ONE, tensor_parallel_size=2)
CHUNK = Chunk("a", [3, 4, 5], 0, [0], Sampling(temperature=0))


def children() -> set[int]:
    """Processes that this one has started and that are still there, whichever thread it was."""
    tasks = Path("/proc/self/task").glob("*/children")
    return {int(pid) for task in tasks for pid in task.read_text().split()}


def answers(runner: Runner) -> dict[str, Told]:
    """Tokens and log probabilities, the prompts' too, of requests in mixed steps and chunks."""
    rng = random.Random(1)
    engine = Engine(runner, Limits(budget_tokens=11, max_running=4, max_waiting=9, max_length=64))
    told: dict[str, Told] = {}
    for number, size in enumerate((1, 33, 6, 20, 14, 3)):
        sampling = Sampling(temperature=number % 3 / 2, seed=number, num_logprobs=3)
        prompt = [rng.randrange(3, VOCABULARY) for _ in range(size)]
        new = NewRequest(str(number), prompt, 12, sampling, True, num_prompt_logprobs=number % 2)
        assert engine.add(new) is None
        told[str(number)] = ([], [])
    while engine.has_work:
        for token in engine.step().committed.tokens:
            tokens, logprobs = told[token.request_id]
            tokens.append(token.token_id)
            assert token.logprobs is not None
            logprobs += [*(token.started.prompt_logprobs if token.started else ()), token.logprobs]
    engine.check()
    return told


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[Runner, Runner]]]:
    """Each model in one rank and in two; started at a time, since starts take seconds."""
    folder, before = tmp_path_factory.mktemp("models"), children()

    def load(name: str) -> tuple[Runner, Runner]:
        checkpoint = open_checkpoint(folder / name)
        return Runner.load(checkpoint, ONE), Runner.load(checkpoint, TWO)

    for name in NAMES:
        TINY_MODELS[name].save(folder / name)
    with ThreadPoolExecutor() as pool:
        loaded = dict(zip(NAMES, pool.map(load, NAMES), strict=True))
    assert len(children() - before) == len(NAMES)
    yield loaded
    for _, two in loaded.values():
        two.close()
    assert children() == before


@pytest.mark.parametrize("name", NAMES)
def test_two_ranks_say_what_one_says(name: str, pairs: dict[str, tuple[Runner, Runner]]) -> None:
    """Also where ranks have to share a key/value head."""
    one, two = pairs[name]
    assert two.cache.shape[-2] == -(-one.cache.shape[-2] // 2)
    expected, ours = answers(one), answers(two)
    for request_id, (tokens, logprobs) in expected.items():
        assert ours[request_id][0] == tokens
        for mine, theirs in zip(ours[request_id][1], logprobs, strict=True):
            assert mine.token_id == theirs.token_id
            assert mine.logprob == pytest.approx(theirs.logprob, abs=1e-4)
            assert [value for _, value in mine.top] == pytest.approx(
                [value for _, value in theirs.top], abs=1e-4
            )


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return open_checkpoint(write_tiny_model(tmp_path / "model"))


def test_a_step_that_is_interrupted_ends_the_others(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would take the next step's sums for those of the step that they are still at."""
    runner, before = Runner.load(checkpoint, TWO), children()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "compute", interrupt)
    with pytest.raises(KeyboardInterrupt):
        runner.logits([CHUNK], [0])
    monkeypatch.undo()
    assert len(children()) == len(before) - 1
    with pytest.raises(RankError, match="the other ranks were ended"):
        runner.logits([CHUNK], [0])


def test_a_rank_that_cannot_load_stops_the_start(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(StartupError, match="rank 1 ended with exit code 1 while it loaded") as told:
        Runner.load(checkpoint, TWO)
    assert told.value.reason is StartupFailure.ENGINE_FAILED


def test_why_a_rank_cannot_load_is_told(checkpoint: Checkpoint) -> None:
    gone, before = replace(checkpoint, path=checkpoint.path / "gone"), children()
    with pytest.raises(StartupError, match=r"^rank 1: .*/gone cannot be read") as told:
        Runner.load(gone, TWO)
    assert told.value.reason is StartupFailure.MODEL_INVALID
    assert children() == before


def test_a_pipeline_of_two_ranks_made_in_a_thread_that_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then one rank stops, is named, and is ended all the same."""
    folder = str(write_tiny_model(tmp_path / "model"))
    settings = {"dtype": "Float32", "kv_block_size": 16, "max_concurrent_requests": 4}
    with fastgen_runtime.pipeline(folder, **settings) as pipe:
        expected = pipe(["abc", "d"], max_new_tokens=9, temperature=0)
    monkeypatch.setattr(ranks, "ANSWER_SECONDS", 1.0)
    before = children()
    with ThreadPoolExecutor(1) as pool:
        made = pool.submit(
            fastgen_runtime.pipeline, folder, **settings, tensor_parallel_size=2
        ).result()
    with made as pipe:
        assert pipe(["abc", "d"], max_new_tokens=9, temperature=0) == expected
        (other,) = children() - before
        os.kill(other, signal.SIGSTOP)
        with pytest.raises(RankError, match=r"^rank 1 did not answer in time$"):
            pipe("abc")
    assert children() == before


def test_a_pipeline_tells_what_a_model_can_be_split_in(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "model")
    with pytest.raises(StartupError, match=r"^tensor_parallel_size is 3: .* it may be 1, 2 or 4$"):
        fastgen_runtime.pipeline(str(folder), tensor_parallel_size=3)
