"""What FastGen's backend tells vLLM that it does not take, as JSON; run by vLLM's environment.

Argument: the file to write.
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch


def layer_refusals() -> dict[str, str]:
    """By a layer's option: the text of its error."""
    from fastgen_kernels.dropins.unsupported import UnsupportedAttentionError
    from fastgen_kernels.dropins.vllm_backend import FastGenAttentionImpl

    refused: dict[str, Any] = {
        "alibi_slopes": [0.5, 0.25],
        "sinks": torch.zeros(2),
        "attn_type": "encoder_only",
        "kv_cache_dtype": "fp8",
    }
    told = {}
    for name, value in refused.items():
        try:
            FastGenAttentionImpl(2, 64, 0.125, 2, **{name: value})
        except UnsupportedAttentionError as error:
            told[name] = str(error)
    return told


def reasons(**options: Any) -> list[str]:
    """Why vLLM would not take the backend on a GPU."""
    from vllm.platforms.interface import DeviceCapability  # type: ignore[import-not-found]

    from fastgen_kernels.dropins.vllm_backend import FastGenAttentionBackend

    plain = {
        "head_size": 128,
        "dtype": torch.bfloat16,
        "kv_cache_dtype": "auto",
        "block_size": 16,
        "use_mla": False,
        "has_sink": False,
        "use_sparse": False,
        "use_mm_prefix": False,
        "use_per_head_quant_scales": False,
        "device_capability": DeviceCapability(9, 0),
        "attn_type": "decoder",
        "has_sliding_window": True,
    }
    if "capability" in options:
        options = {"device_capability": DeviceCapability(*options["capability"])}
    return list(FastGenAttentionBackend.validate_configuration(**plain | options))


def step_refusal() -> str:
    from fastgen_kernels.dropins.unsupported import UnsupportedAttentionError
    from fastgen_kernels.dropins.vllm_backend import FastGenMetadataBuilder

    builder = FastGenMetadataBuilder(SimpleNamespace(block_size=16), [], None, torch.device("cpu"))
    try:
        builder.build(0, SimpleNamespace(causal=False))
    except UnsupportedAttentionError as error:
        return str(error)
    return ""


def main() -> None:
    told = {
        "layer": layer_refusals(),
        "step": step_refusal(),
        "plain": reasons(),
        "head": reasons(head_size=20),
        "dtype": reasons(dtype=torch.float32),
        "old": reasons(capability=(7, 5)),
        "cache": reasons(kv_cache_dtype="fp8"),
    }
    Path(sys.argv[1]).write_text(json.dumps(told))


if __name__ == "__main__":
    main()
