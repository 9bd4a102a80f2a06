"""The GPU benchmark as far as it goes without a GPU: by interpreted kernels, and compiled."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import gpu
import gpu_checks
import gpu_target
import numpy as np
import pytest
import torch
from gpu_attention import decode_figures, prefill_figures
from gpu_cases import DRY
from gpu_clients import Slo
from gpu_figures import Figure, Trouble
from gpu_model import decode_step, make_runners
from gpu_serving import measure_serving, step_figures
from gpu_target import Target, dry_target
from torch import Tensor

from fastgen_kernels.dispatch import Device, kernels_for
from fastgen_kernels.heads import Heads
from fastgen_kernels.ragged import RaggedBatch
from fastgen_kernels.triton_kernels.attention_plan import AttentionPlan, make_plan
from fastgen_kernels.triton_kernels.tiling import Gpu
from fastgen_runtime.device.graphs import sizes_up_to

ROOT = Path(__file__).resolve().parents[2]
GPU = Gpu(90, 2)
pytestmark = [
    pytest.mark.filterwarnings("ignore:divide by zero"),
    pytest.mark.filterwarnings("ignore:invalid value"),
    pytest.mark.filterwarnings("ignore:overflow"),
    pytest.mark.filterwarnings("ignore:flex_attention called without"),
]


def plan_attention(
    batch: RaggedBatch, heads: Heads, dtype: Any, device: torch.device, window: Any = None
) -> AttentionPlan:
    """For a GPU that is described rather than found."""
    return make_plan(batch, heads, device, GPU, window)


def interpreted() -> Target:
    kernels = replace(kernels_for(Device("cuda", (9, 0))), plan_attention=plan_attention)
    return Target(torch.device("cpu"), kernels, torch.float32, GPU, "interpreted", has_plans=True)


def test_kernels_are_right_and_wrong_ones_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small sizes of heads: it is the checks that are checked here."""
    monkeypatch.setattr(gpu_checks, "_CHUNKS", ((0, 1), (63, 1), (64, 1), (0, 20), (30, 7)))
    target = interpreted()
    figures = list(gpu_checks.check_figures(target))
    assert {figure.case for figure in figures} >= {
        "attention, fp8 cache", "attention, without prefetching", "linear fp8", "sampling"
    }  # fmt: skip
    assert [figure for figure in figures if not figure.is_met] == []

    def wrong(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return target.kernels.rotary(x, cos, -sin)

    broken = replace(target, kernels=replace(target.kernels, rotary=wrong))
    assert gpu_checks._rotary(broken) > 0.1


def test_attention_is_measured_by_the_kernels_own_plans() -> None:
    """Every way to divide the work is there, and large cases alone are held to an aim."""
    figures = [
        *decode_figures(interpreted(), DRY, 1e9),
        *prefill_figures(interpreted(), DRY, 1e12),
    ]
    told = [(figure.part, figure.case, figure.name) for figure in figures]
    assert len(told) == len(set(told))
    assert {name.split(",")[0] for _, _, name in told} == {
        "share of copy bandwidth", "launches", "bytes beside keys and values",
        "fixed", "splitkv", "splitkv-capped", "attention",
    }  # fmt: skip
    assert all(np.isfinite(figure.value) and figure.value > 0 for figure in figures)
    assert [figure for figure in figures if figure.aim is not None] == []


def test_the_kernel_with_a_clock_is_the_kernel_and_compiles() -> None:
    """In a process that does not interpret, for Hopper and Ampere."""
    code = """
import sys
sys.path.insert(0, "benchmarks")
from gpu_stamps import stamped, stamped_launch
from fastgen_kernels.aot.catalogue import catalogue
from fastgen_kernels.aot.compilation import compile_launch
from fastgen_kernels.triton_kernels.decode_kernel import decode
assert stamped.arg_names == ["stamps", *decode.arg_names], stamped.arg_names
for architecture in (80, 90):
    launch = catalogue()[f"decode bf16, head 128, block 64 sm_{architecture}"].make()
    ptx = compile_launch(stamped_launch(launch), architecture).asm["ptx"]
    reads = [ptx.index("globaltimer"), ptx.rindex("globaltimer")]
    # What is measured lies between the two reads of the clock.
    assert reads[0] < ptx.index("mma") < ptx.rindex("mma") < reads[1], reads
    assert ptx.count("globaltimer") == 2
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=540
    )
    assert done.returncode == 0, done.stderr


def test_steps_by_graphs_choose_the_tokens_of_steps_without() -> None:
    """Buffers and padding of the benchmark's own model; a graph is replayed by running it again."""
    eager = make_runners(dry_target(), DRY).eager
    captured: list[int] = []

    def capture(forward: Any) -> Any:
        captured.append(len(captured))
        return forward

    by_graphs = make_runners(interpreted(), DRY, capture).graphs
    step = decode_step(DRY.model, 3, DRY.step_context, DRY.block_size)
    told = [[one.token_id for one in runner.run(step)] for runner in (eager, by_graphs)]
    assert len(captured) == len(sizes_up_to(max(*DRY.clients, *DRY.step_rows)))
    assert told[0] == told[1]


def test_steps_and_clients_on_the_dry_model() -> None:
    runners = make_runners(dry_target(), DRY)
    figures = list(step_figures(runners, DRY, 1e9, 1e9))
    assert figures[0].is_met is True
    assert len(figures) == 1 + 2 * (len(DRY.step_rows) + len(DRY.step_prompts))
    served = list(measure_serving(runners.graphs, DRY, Slo(1e6, 1e6), 1))
    assert {figure.case for figure in served} == {
        f"{clients} clients, {way}"
        for clients in DRY.clients
        for way in ("splitfuse", "prefill-first", "vanilla")
    }
    by_name = {(figure.case, figure.name): figure.value for figure in served}
    for case in {figure.case for figure in served}:
        assert by_name[case, "goodput"] == by_name[case, "answers"] > 0


def test_a_part_that_fails_leaves_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command itself, dry: the file has what was found, and the exit code says that not all."""

    def fail(*_: object) -> Any:
        yield Figure("decode", "first", "share of copy bandwidth", 0.9, "")
        raise ValueError("no such layout\nat line 5")

    monkeypatch.setattr(gpu, "decode_figures", fail)
    arguments = ["gpu.py", "decode", "prefill", "peers", "--dry", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", arguments)
    assert gpu.main() == 1
    file = json.loads((tmp_path / "gpu.json").read_text())
    assert {each["part"] for each in file["figures"]} == {"machine", "decode", "prefill", "peers"}
    troubles = {(each["part"], each["sentence"]) for each in file["troubles"]}
    assert ("decode", "ValueError: no such layout") in troubles
    assert "prefill" in capsys.readouterr().out


def test_nothing_is_begun_when_time_is_up() -> None:
    class Endless:
        def machine(self) -> list[Figure]:
            return []

        def part(self, name: str) -> Any:
            while True:
                yield Figure(name, "case", "figure", 1.0, "")

        def forget_model(self) -> None:
            pass

    notes: list[int] = []
    found = gpu.measure(Endless(), ["checks", "peers"], 0.0, lambda each: notes.append(len(each)))
    assert [type(each) for each in found] == [Figure, Trouble] * 2
    assert notes == [2, 4]


def test_without_a_gpu_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_target, "find_device", lambda: Device("cpu"))
    monkeypatch.setattr(sys, "argv", ["gpu.py"])
    assert gpu.main() == 2
    told = capsys.readouterr().err
    assert told.startswith("no GPU is here: this benchmark needs an NVIDIA GPU")
    assert "Traceback" not in told
