"""The models that `engine.py` measures: a small random one, and SmolLM2."""

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from fastgen_runtime.engine import cores

cores.limit_threads(cores.available_threads())  # before torch is imported
from fastgen_runtime.device.runner import Runner, RunnerConfig  # noqa: E402
from fastgen_runtime.engine.runner_config import CpuStepUse  # noqa: E402
from fastgen_runtime.models.checkpoint import open_checkpoint  # noqa: E402
from fastgen_runtime.sources.fetch import fetch  # noqa: E402

SMALL: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 4096,
    "max_position_embeddings": 16384,
    "tie_word_embeddings": True,
}
"""Small enough that this machine keeps targets of 30 and 50 ms, as a GPU does with a large one."""


def load_runner(model: str, num_blocks: int, most_tokens: int, most_requests: int) -> Runner:
    """model: `small` or `smollm2`; blocks of 32 tokens."""
    config = RunnerConfig(
        num_blocks=num_blocks,
        block_size=32,
        max_step_tokens=most_tokens,
        max_concurrent_requests=most_requests,
        cpu_step=CpuStepUse.AUTO,
    )
    if model != "small":
        runner = Runner.load(open_checkpoint(fetch(model)), config)
    else:
        with tempfile.TemporaryDirectory() as folder:
            _write_small(Path(folder))
            runner = Runner.load(open_checkpoint(Path(folder)), config)
    # Context that nobody computed must be ordinary numbers: denormal ones take CPUs much longer.
    runner.cache.normal_()
    return runner


def _write_small(folder: Path) -> None:
    rng = np.random.default_rng(0)
    hidden, inner = int(SMALL["hidden_size"]), int(SMALL["intermediate_size"])
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens": (int(SMALL["vocab_size"]), hidden)}
    for number in range(int(SMALL["num_hidden_layers"])):
        layer = f"model.layers.{number}"
        shapes |= {
            f"{layer}.self_attn.q_proj": (hidden, hidden),
            f"{layer}.self_attn.k_proj": (hidden // 2, hidden),
            f"{layer}.self_attn.v_proj": (hidden // 2, hidden),
            f"{layer}.self_attn.o_proj": (hidden, hidden),
            f"{layer}.mlp.gate_proj": (inner, hidden),
            f"{layer}.mlp.up_proj": (inner, hidden),
            f"{layer}.mlp.down_proj": (hidden, inner),
        }
        for norm in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{layer}.{norm}"] = (hidden,)
    shapes["model.norm"] = (hidden,)
    tensors = {
        f"{name}.weight": (
            np.ones(shape, np.float32)
            if len(shape) == 1
            else rng.standard_normal(shape, np.float32) / np.float32(np.sqrt(shape[-1]))
        )
        for name, shape in shapes.items()
    }
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(SMALL))
