"""The runner with a GPU's kernels, interpreted, next to the CPU's: whole models, step by step."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_model import write_tiny_model
from torch import Tensor

from fastgen_kernels.dispatch import Device, Kernels, kernels_for
from fastgen_kernels.heads import Heads
from fastgen_kernels.ragged import RaggedBatch
from fastgen_kernels.triton_kernels.attention_plan import (
    AttentionPlan,
    StaticDecodePlan,
    make_plan,
)
from fastgen_kernels.triton_kernels.tiling import Gpu
from fastgen_runtime.device.forward import ModelForward
from fastgen_runtime.device.graphs import DecodeGraphs
from fastgen_runtime.device.model import Inputs, Model
from fastgen_runtime.device.runner import Runner
from fastgen_runtime.device.weights import load_weights
from fastgen_runtime.engine.step import Chunk, Sampling, Step
from fastgen_runtime.models.checkpoint import open_checkpoint

CPU = torch.device("cpu")
GPU = Gpu(90, 2)
NUM_BLOCKS, BLOCK_SIZE = 12, 16


def plan_attention(
    batch: RaggedBatch, heads: Heads, dtype: torch.dtype, device: torch.device, window: Any = None
) -> AttentionPlan:
    """For a GPU that is described rather than found."""
    return make_plan(batch, heads, device, GPU, window)


def gpu_kernels() -> Kernels:
    """What the table has for a GPU, but for the question how many multiprocessors it has."""
    return replace(kernels_for(Device("cuda", (9, 0))), plan_attention=plan_attention)


class Runners:
    """The same model by the CPU's kernels, by the GPU's, and by those in graphs."""

    def __init__(self, folder: Path) -> None:
        checkpoint = open_checkpoint(folder)
        config = checkpoint.config
        shape = (config.num_layers, 2, NUM_BLOCKS, BLOCK_SIZE, config.num_kv_heads, config.head_dim)
        self.captured: list[int] = []
        self.replayed = 0

        def runner(kernels: Kernels, graphs: bool = False) -> Runner:
            with torch.no_grad():
                weights = load_weights(config, checkpoint.tensors(), kernels, torch.float32, CPU)
            model = Model(config, weights, kernels, 128)
            cache = torch.full(shape, torch.nan)
            made = self.graphs(model, config, cache) if graphs else None
            forward = ModelForward(model, config, kernels, cache, made)
            return Runner(forward, config, kernels, cache)

        self.cpu = runner(kernels_for(Device("cpu")))
        self.gpu = runner(gpu_kernels())
        self.graph = runner(gpu_kernels(), graphs=True)

    def graphs(self, model: Model, config: Any, cache: Tensor) -> DecodeGraphs:
        """A graph is replayed by running what was captured again, on the same tensors."""
        slots = cache.flatten(2, 3)
        heads = Heads(config.num_heads, config.num_kv_heads, config.head_dim)
        plans = {
            window: StaticDecodePlan(4, 8, heads, BLOCK_SIZE, CPU, GPU, window)
            for window in config.distinct_windows
        }

        def capture(forward: Any) -> Any:
            forward()

            def replay() -> Tensor:
                self.replayed += 1
                return forward()

            return replay

        def forward(inputs: Inputs) -> Tensor:
            self.captured.append(len(inputs.token_ids))
            return model.hidden(inputs, slots)

        return DecodeGraphs(forward, plans, (1, 2, 4), CPU, torch.inference_mode()(capture))

    def step(self, *chunks: Chunk) -> list[list[int | None]]:
        """The tokens that each runner draws."""
        runners = (self.cpu, self.gpu, self.graph)
        return [[result.token_id for result in runner.run(Step(chunks))] for runner in runners]


def chunk(tokens: list[int], start: int, blocks: list[int], wanted: bool = True) -> Chunk:
    sampling = Sampling(temperature=0.0) if wanted else None
    return Chunk("r", tokens, start, blocks, sampling, output_token_ids=tokens)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 20},
    ],
    ids=["llama", "window"],
)
def test_gpus_kernels_compute_what_the_cpus_do(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Prompts in chunks, mixed steps, then decodes: the last ones by graphs, padded."""
    runners = Runners(write_tiny_model(tmp_path, 1, **changes))
    rng = np.random.default_rng(0)
    first, second, third = (rng.integers(0, 256, n).tolist() for n in (40, 23, 5))
    tables = [3, 9, 0], [7, 1], [5]
    # Graphs are captured before any step: largest first.
    assert runners.captured == [4, 2, 1]
    told = runners.step(chunk(first[:30], 0, tables[0], False), chunk(second, 0, tables[1]))
    assert told[0] == told[1] == told[2]
    tokens = {"second": told[0][1]}
    told = runners.step(
        chunk(first[30:], 30, tables[0]),
        chunk([tokens["second"]], 23, tables[1]),
        chunk(third, 0, tables[2]),
    )
    assert told[0] == told[1] == told[2]
    assert runners.replayed == 0
    contexts = [40, 24, 5]
    last = told[0]
    for _ in range(3):
        chunks = [
            chunk([token], context, table)
            for token, context, table in zip(last, contexts, tables, strict=True)
        ]
        told = runners.step(*chunks)
        assert told[0] == told[1] == told[2]
        last, contexts = told[0], [context + 1 for context in contexts]
    assert runners.replayed == 3
    for ours in (runners.gpu, runners.graph):
        torch.testing.assert_close(ours.cache, runners.cpu.cache, atol=1e-4, rtol=0, equal_nan=True)


def test_guessed_tokens_are_told_what_decodes_would_be(tmp_path: Path) -> None:
    """A right guess, a wrong one and none in a step, which no graph computes; then decodes."""
    runners = Runners(write_tiny_model(tmp_path, 1))
    prompts, tables = [[5, 8, 13], [2, 3, 5, 7]], ([3, 9], [7])
    told = runners.step(*(chunk(p, 0, t) for p, t in zip(prompts, tables, strict=True)))
    first, second = (token for token in told[0] if token is not None)
    after = runners.step(chunk([first], 3, tables[0]), chunk([second], 4, tables[1]))[0]
    guesses = [after[0], (after[1] or 0) + 1]
    replayed = runners.replayed
    guessed = [
        replace(chunk([token, guess, 99], start, table), num_drafted=2)
        for token, guess, start, table in zip((first, second), guesses, (3, 4), tables, strict=True)
    ]
    results = [
        runner.run(Step(tuple(guessed))) for runner in (runners.cpu, runners.gpu, runners.graph)
    ]
    assert runners.replayed == replayed
    for both in results:
        assert [result.token_id for result in both] == after
        assert [len(result.further_token_ids) for result in both] == [2, 2]
    expected = runners.step(chunk([after[0] or 0], 4, tables[0]))
    assert {result[0].further_token_ids[0] for result in results} == {expected[0][0]}
    # What a wrong guess left in the cache is written over.
    told = runners.step(chunk([after[1] or 0], 5, tables[1]))
    assert told[0] == told[1] == told[2]
