"""CPU time of SmolLM2's steps, alternated, one thread: compiled in bf16 and int8, and by torch."""

import json
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import torch
import typer

from fastgen_kernels.cpu_step.compiler import build
from fastgen_kernels.cpu_step.description import Element, StepModel
from fastgen_kernels.cpu_step.isa import Isa, isa_of
from fastgen_kernels.cpu_step.step import CpuStep
from fastgen_kernels.cpu_step.weights import DTYPES, Packer, StepLayer, StepWeights
from fastgen_kernels.dispatch import Device, kernels_for
from fastgen_kernels.large_pages import large_pages
from fastgen_kernels.ragged import RaggedBatch
from fastgen_kernels.torch_twins.quantized import WeightFormat
from fastgen_runtime.device.rotary import frequencies
from fastgen_runtime.device.runner import Runner, RunnerConfig
from fastgen_runtime.device.weights import load_weights
from fastgen_runtime.engine.cores import cpu_flags
from fastgen_runtime.engine.step import Chunk
from fastgen_runtime.models.capacity import WEIGHT_GROUP
from fastgen_runtime.models.checkpoint import Checkpoint, open_checkpoint
from fastgen_runtime.sources.fetch import SMOLLM2, fetch

BLOCK_SIZE = 64
BLOCKS = 200
POSITIONS = 4096
STEPS: dict[str, list[tuple[int, int]]] = {
    "1 decode at 576": [(575, 1)],
    "16 decodes at 193": [(192, 1)] * 16,
    "15 decodes, chunk of 113": [(192, 1)] * 15 + [(0, 113)],
    "8 decodes, chunk of 100 at 2048": [(300, 1)] * 8 + [(2048, 100)],
    "prompt of 512": [(0, 512)],
}
"""Start and length of each chunk."""


def compiled(
    checkpoint: Checkpoint, isa: Isa, cache: Path, int8_group: int | None
) -> tuple[CpuStep, torch.Tensor]:
    """The step with weights in bfloat16, those of linear layers in int8 where it has groups; its
    cache."""
    config = checkpoint.config
    model = StepModel(
        config.num_layers, config.hidden_size, config.num_heads, config.num_kv_heads,
        config.head_dim, config.intermediate_size, config.vocab_size, config.norm_eps,
        config.rotated, BLOCK_SIZE, Element.BF16, Element.BF16, int8_group,
    )  # fmt: skip
    packer: Any = Packer(model)  # its layers need not be callable
    kernels = replace(
        kernels_for(Device("cpu")), pack_linear=packer.linear, pack_quantized=packer.quantized
    )
    weights: Any = load_weights(
        config, checkpoint.tensors(), kernels, DTYPES[model.weights], torch.device("cpu"),
        form=None if int8_group is None else WeightFormat.INT8,
    )  # fmt: skip
    turned = frequencies(config.rotated, config.rope_theta, config.rope_scaling, POSITIONS)
    angles = torch.outer(torch.arange(POSITIONS).float(), turned)
    norm = weights.norm.weight
    layers = tuple(map(_layer, weights.layers))
    held = StepWeights(
        None if int8_group is None else weights.embedding, None, layers, norm, None,
        weights.lm_head, angles.cos(), angles.sin(),
    )  # fmt: skip
    step = CpuStep(build(model, isa, cache).path, model, held, threads=1)
    shape = (config.num_layers, 2, BLOCKS, BLOCK_SIZE, config.num_kv_heads, config.head_dim)
    return step, large_pages(shape, DTYPES[model.cache])


def _layer(layer: Any) -> StepLayer:
    return StepLayer(
        layer.attention_norm.weight, None, layer.qkv, None, None, layer.output,
        layer.feed_forward_norm.weight, None, layer.feed_forward.up, layer.feed_forward.down,
    )  # fmt: skip


def timed(function: Callable[[], object]) -> float:
    """Milliseconds of this thread's CPU time."""
    begun = time.thread_time()
    function()
    return (time.thread_time() - begun) * 1e3


def chunks_of(pieces: list[tuple[int, int]]) -> list[Chunk]:
    """With random tokens, and blocks one after another."""
    rng, chunks, block = np.random.default_rng(1), [], 0
    for number, (start, length) in enumerate(pieces):
        count = -(-(start + length) // BLOCK_SIZE)
        ids = rng.integers(4, 4000, length).tolist()
        chunks.append(Chunk(str(number), ids, start, list(range(block, block + count)), None))
        block += count
    return chunks


def main(
    rounds: Annotated[int, typer.Option(help="of each step, alternated")] = 5,
    out: Annotated[Path, typer.Option(help="folder for the figures")] = Path("benchmarks/results"),
) -> None:
    isa = isa_of(cpu_flags())
    if isa is None:
        raise typer.BadParameter("this CPU has no AVX2, which the compiled step needs")
    checkpoint = open_checkpoint(fetch(SMOLLM2))
    runner = Runner.load(
        checkpoint,
        RunnerConfig(
            block_size=BLOCK_SIZE, num_blocks=BLOCKS, max_model_length=POSITIONS, threads=1
        ),
    )
    runner.cache.zero_()
    steps = [compiled(checkpoint, isa, out / "cpu_step", group) for group in (None, WEIGHT_GROUP)]
    figures = {}
    print(f"{isa} | step ms | int8 ms | twin ms | int8 / step | twin / step")
    for name, pieces in STEPS.items():
        chunks = chunks_of(pieces)
        lengths = [length for _, length in pieces]
        batch = RaggedBatch.of(
            [start for start, _ in pieces], lengths, [chunk.block_ids for chunk in chunks],
            BLOCK_SIZE,
        )  # fmt: skip
        ids = np.array([token for chunk in chunks for token in chunk.token_ids])
        rows = np.cumsum(lengths) - 1

        def ours(number: int, batch=batch, ids=ids, rows=rows) -> None:  # type: ignore[no-untyped-def]
            step, cache = steps[number]
            step.lm_head(step.hidden(batch, ids, rows, cache))

        def theirs(chunks=chunks) -> None:  # type: ignore[no-untyped-def]
            runner.logits(chunks, list(range(len(chunks))))

        ways: list[Callable[[], None]] = [partial(ours, 0), partial(ours, 1), theirs]
        times = [[timed(way) for way in ways] for _ in range(rounds + 1)][1:]
        mine, int8, twin = (median(side) for side in zip(*times, strict=True))
        figures[name] = {"step_ms": mine, "int8_ms": int8, "twin_ms": twin, "ratio": twin / mine}
        print(
            f"{name} | {mine:.1f} | {int8:.1f} | {twin:.1f} | {int8 / mine:.2f} | {twin / mine:.2f}"
        )
    (out / "cpu_step.json").write_text(json.dumps({"isa": isa, "steps": figures}, indent=1))
    for step, _ in steps:
        step.close()


if __name__ == "__main__":
    typer.run(main)
