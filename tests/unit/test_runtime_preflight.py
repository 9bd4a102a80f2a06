"""Whether a model fits, told before its weights are read, and how true it is."""

import json
import logging
import math
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tiny_model import CONFIG, tensor_shapes, write_tiny_model

from fastgen_api.names import StartupFailure
from fastgen_api.spec import DType, Quantization
from fastgen_kernels.cpu_step.isa import isa_of
from fastgen_runtime.device.runner import Runner, RunnerConfig
from fastgen_runtime.engine import cores
from fastgen_runtime.engine.runner_config import CpuStepUse
from fastgen_runtime.models.architectures import config_from_hf
from fastgen_runtime.models.capacity import Packing
from fastgen_runtime.models.checkpoint import open_checkpoint
from fastgen_runtime.models.preflight import Demand, Offer, plan_memory, preflight
from fastgen_runtime.startup_error import StartupError

GIB = 1 << 30
LLAMA_8B = CONFIG | {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
}
DEMAND = Demand(
    dtype=DType.BFLOAT16,
    packing=Packing.LAYERS,
    longest=8192,
    block_size=64,
    max_tokens=512,
    most_requests=16,
)
OFFER = Offer(24 * GIB, 60 * GIB, GIB // 4, 90)


def test_the_numbers_of_llama_3_8b() -> None:
    plan = plan_memory(config_from_hf(LLAMA_8B), tensor_shapes(LLAMA_8B), DEMAND, OFFER)
    assert plan.weight_bytes == 8_030_261_248 * 2
    assert plan.request_bytes == 131072 * 8192, "128 KiB a token"
    assert plan.loading_bytes == 128256 * 4096 * 2, "the output layer is the largest"
    assert plan.num_blocks == (plan.offered_bytes - plan.weight_bytes - plan.activation_bytes) // (
        131072 * 64
    )


def test_a_tied_embedding_is_there_twice_where_layers_are_packed() -> None:
    tied = LLAMA_8B | {"tie_word_embeddings": True}
    shapes = tensor_shapes(LLAMA_8B)
    embedding = 128256 * 4096 * 2
    config = config_from_hf(tied)
    packed = plan_memory(config, shapes, DEMAND, OFFER)
    plain = plan_memory(config, shapes, replace(DEMAND, packing=Packing.NONE), OFFER)
    assert packed.weight_bytes == 8_030_261_248 * 2
    assert plain.weight_bytes == packed.weight_bytes - embedding


def test_it_fits_and_the_numbers_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        plan = preflight(config_from_hf(LLAMA_8B), tensor_shapes(LLAMA_8B), DEMAND, OFFER)
    (record,) = caplog.records
    assert record.message == "memory plan"
    assert vars(record)["weight_bytes"] == plan.weight_bytes


@pytest.mark.parametrize(
    ("demand", "limit", "words"),
    [
        (DEMAND, 8, "give it 10711 MiB more memory"),
        (replace(DEMAND, dtype=DType.FLOAT32), 24, "choose the dtype BFloat16"),
    ],
)
def test_what_does_not_fit_names_the_way_out(demand: Demand, limit: int, words: str) -> None:
    offer = replace(OFFER, limit_bytes=limit * GIB)
    with pytest.raises(StartupError, match=words) as raised:
        preflight(config_from_hf(LLAMA_8B), tensor_shapes(LLAMA_8B), demand, offer)
    assert raised.value.reason is StartupFailure.OUT_OF_MEMORY
    assert f"of the memory limit of {limit * 1024} MiB" in str(raised.value)
    assert "maxModelLength" not in str(raised.value), "the weights alone are too large"


def test_steps_become_smaller_where_memory_is_short_for_the_largest() -> None:
    config, shapes = config_from_hf(LLAMA_8B), tensor_shapes(LLAMA_8B)
    large = replace(DEMAND, max_tokens=8192, least_tokens=512)
    assert preflight(config, shapes, large, OFFER).step_tokens == 8192
    short = replace(OFFER, limit_bytes=17 * GIB, memory_percent=100)
    assert preflight(config, shapes, large, short).step_tokens == 2048
    with pytest.raises(StartupError):
        preflight(config, shapes, replace(large, least_tokens=None), short)


def test_what_loading_takes_for_a_moment_may_come_from_the_reserve() -> None:
    config, shapes = config_from_hf(LLAMA_8B), tensor_shapes(LLAMA_8B)
    small = replace(DEMAND, longest=64, max_tokens=16, most_requests=1)
    plan = plan_memory(config, shapes, small, OFFER)
    assert plan.reserve_bytes == 24 * GIB // 10
    assert plan.loading_bytes < plan.reserve_bytes
    assert plan.needed_bytes == plan.weight_bytes + plan.activation_bytes + plan.request_bytes


def test_a_length_that_does_not_fit_names_the_longest_that_does() -> None:
    config, shapes = config_from_hf(LLAMA_8B), tensor_shapes(LLAMA_8B)
    offer = replace(OFFER, limit_bytes=20 * GIB)

    def check(longest: int) -> str:
        try:
            preflight(config, shapes, replace(DEMAND, longest=longest), offer)
        except StartupError as error:
            return str(error)
        return ""

    words = re.search(r"lower maxModelLength to (\d+)\b", check(131072))
    assert words is not None
    longest = int(words[1])
    assert check(longest) == ""
    assert check(longest + 1) != ""


def write_hollow_model(folder: Path, config: dict[str, Any]) -> Path:
    """A folder whose weights are a hole in the disk, as large as the configuration says."""
    write_tiny_model(folder, 0, **config)
    header, end = {}, 0
    for name, shape in tensor_shapes(config).items():
        start, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    return folder


def test_a_model_too_large_is_refused_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_hollow_model(tmp_path / "huge", LLAMA_8B)
    monkeypatch.setattr(cores, "memory_limit_bytes", lambda: 4 * GIB)
    monkeypatch.setattr("fastgen_runtime.device.loading.load_weights", pytest.fail)
    with pytest.raises(StartupError, match="weights 15317 MiB as BFloat16"):
        Runner.load(open_checkpoint(folder), RunnerConfig(dtype=DType.BFLOAT16))
    assert (folder / "model.safetensors").stat().st_blocks * 512 < 1 << 20


LOAD = """
import json, logging, sys, threading
from pathlib import Path
from fastgen_api.spec import DType, Quantization
from fastgen_runtime.models.checkpoint import open_checkpoint
from fastgen_runtime.device.runner import Runner, RunnerConfig
from fastgen_runtime.engine.runner_config import CpuStepUse

def anonymous():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))

class Plan(logging.Handler):
    def emit(self, record):
        if record.getMessage() == "memory plan":
            self.figures = [record.weight_bytes, record.loading_bytes]

plan, ended, seen = Plan(), threading.Event(), [0]
logging.getLogger("fastgen").addHandler(plan)
logging.getLogger("fastgen").setLevel(logging.INFO)

def watch():
    while not ended.wait(0.002):
        seen[0] = max(seen[0], anonymous())

before = anonymous()
thread = threading.Thread(target=watch, daemon=True)
thread.start()
config = RunnerConfig(
    dtype=DType(sys.argv[2]), max_model_length=128, max_concurrent_requests=2,
    cpu_step=CpuStepUse(sys.argv[3]), quantization=Quantization(sys.argv[4]),
)
runner = Runner.load(open_checkpoint(Path(sys.argv[1])), config)
ended.set()
thread.join()
print(type(runner._forward).__name__)
print(json.dumps([*plan.figures, seen[0] - before, anonymous() - before]))
"""
LARGE = CONFIG | {
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_hidden_layers": 11,
    "num_attention_heads": 12,
    "num_key_value_heads": 12,
    "vocab_size": 16384,
}
ALLOCATOR_BYTES = 24 << 20
"""For oneDNN, thread stacks and small things."""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """100 million weights, stored as bfloat16 in four files."""
    folder = write_tiny_model(tmp_path_factory.mktemp("large"), 0, **LARGE)
    torch.manual_seed(0)
    shapes = sorted(tensor_shapes(LARGE).items())
    for number in range(4):
        part = {name: torch.rand(shape).bfloat16() for name, shape in shapes[number::4]}
        save_file(part, folder / f"model-{number}.safetensors")
    return folder


def loading(
    folder: Path, dtype: DType, cpu_step: CpuStepUse, quantization: Quantization
) -> list[int]:
    """Bytes: the plan's weights and what it adds for loading; the most there was, what stayed."""
    command = [sys.executable, "-c", LOAD, str(folder), dtype, cpu_step, quantization]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    way, figures = done.stdout.splitlines()[-2:]
    assert way == ("ModelForward" if cpu_step is CpuStepUse.OFF else "StepForward")
    found: list[int] = json.loads(figures)
    return found


BY_THE_OP = pytest.param(
    DType.BFLOAT16,
    CpuStepUse.AUTO,
    marks=pytest.mark.skipif(isa_of(cores.cpu_flags()) is None, reason="needs AVX2"),
)


@pytest.mark.parametrize(
    ("dtype", "cpu_step"),
    [(DType.FLOAT32, CpuStepUse.OFF), (DType.BFLOAT16, CpuStepUse.OFF), BY_THE_OP],
)
def test_loading_takes_what_was_foretold_and_no_second_copy(
    large: Path, dtype: DType, cpu_step: CpuStepUse
) -> None:
    foretold, _, peak, loaded = loading(large, dtype, cpu_step, Quantization.NONE)
    num_weights = sum(map(math.prod, tensor_shapes(LARGE).values()))
    assert foretold == num_weights * (4 if dtype is DType.FLOAT32 else 2)
    assert peak <= foretold * 1.15 + ALLOCATOR_BYTES
    assert foretold * 0.85 <= loaded <= foretold * 1.15 + ALLOCATOR_BYTES


@pytest.mark.parametrize(("dtype", "cpu_step"), [(DType.FLOAT32, CpuStepUse.OFF), BY_THE_OP])
def test_rounding_takes_what_was_foretold(large: Path, dtype: DType, cpu_step: CpuStepUse) -> None:
    """The output layer is the largest: it is there in the dtype while it is rounded."""
    foretold, added, peak, loaded = loading(large, dtype, cpu_step, Quantization.INT8)
    assert peak <= foretold * 1.05 + added + ALLOCATOR_BYTES
    assert foretold * 0.85 <= loaded <= foretold * 1.05 + ALLOCATOR_BYTES
