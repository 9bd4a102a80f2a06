"""Small random models of every architecture and of each of its shapes."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
import transformers
from transformers import PreTrainedModel

VOCABULARY: Final = 101
_RMS: Final = {
    "vocab_size": VOCABULARY,
    "hidden_size": 60,
    "intermediate_size": 84,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "rms_norm_eps": 1e-5,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_LAYER: Final = {
    key: value
    for key, value in _RMS.items()
    if key not in ("rms_norm_eps", "num_key_value_heads", "intermediate_size")
}
_OPT: Final = {"ffn_dim": 84, "init_std": 0.2}
_FALCON: Final = {"ffn_hidden_size": 84}
_NEOX: Final = {"intermediate_size": 84, "hidden_size": 96, "tie_word_embeddings": False}
_MIXTRAL: Final = {"num_local_experts": 5, "num_experts_per_tok": 2}
_QWEN3_MOE: Final = {
    "num_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 28,
    "head_dim": 14,
}


@dataclass(frozen=True, slots=True)
class TinyModel:
    """options: what differs from the architecture's base.

    max_length: configured longest request, where rotary frequencies depend on it; the prompt is
    then that long. stacked: saved with all experts of a layer in two tensors.
    """

    architecture: str
    base: dict[str, Any]
    options: dict[str, Any] = field(default_factory=dict)
    max_length: int | None = None
    stacked: bool = False

    def save(self, folder: Path) -> PreTrainedModel:
        """A random model, its norms and biases too, written by transformers."""
        torch.manual_seed(sum(map(ord, repr(self.options))))
        config_class = getattr(transformers, f"{self.architecture}Config")
        config = config_class(**(self.base | self.options))
        model_class = getattr(transformers, f"{self.architecture}ForCausalLM")
        model: PreTrainedModel = model_class._from_config(config, attn_implementation="eager")
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "norm" in name or "ln_" in name or name.endswith("bias"):
                    parameter.add_(torch.randn_like(parameter) * 0.2)
        model = model.eval()
        model.save_pretrained(folder, save_original_format=not self.stacked)
        return model


def _rope(kind: str, **values: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 1e4, **values}}


def _longrope(pairs: int) -> dict[str, Any]:
    return _rope(
        "longrope",
        short_factor=[1 + pair / 10 for pair in range(pairs)],
        long_factor=[2 + pair / 2 for pair in range(pairs)],
    ) | {"original_max_position_embeddings": 32}


_LLAMA3: Final = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
_YARN: Final = {"factor": 4.0, "original_max_position_embeddings": 32}
_DYNAMIC: Final = _rope("dynamic", factor=4.0)
TINY_MODELS: Final = {
    "llama, grouped heads": TinyModel("Llama", _RMS),
    "llama, one key head, tied, head_dim 12": TinyModel(
        "Llama", _RMS, {"num_key_value_heads": 1, "tie_word_embeddings": True, "head_dim": 12}
    ),
    "llama, a key head each, biases, heads of 2": TinyModel(
        "Llama",
        _RMS,
        {"num_key_value_heads": 6, "attention_bias": True, "mlp_bias": True, "head_dim": 2},
    ),
    "llama, other theta and epsilon": TinyModel(
        "Llama", _RMS, _rope("default", rope_theta=1e6) | {"rms_norm_eps": 1e-3}
    ),
    "llama, linear": TinyModel("Llama", _RMS, _rope("linear", factor=4.0)),
    "llama, llama3": TinyModel("Llama", _RMS, _rope("llama3", **_LLAMA3)),
    "llama, yarn": TinyModel("Llama", _RMS, _rope("yarn", **_YARN)),
    "llama, yarn by name": TinyModel(
        "Llama",
        _RMS,
        _rope("yarn", **_YARN, attention_factor=0.9, beta_fast=16, beta_slow=2, truncate=False),
    ),
    "llama, dynamic within": TinyModel("Llama", _RMS, _DYNAMIC, max_length=256),
    "llama, dynamic beyond": TinyModel(
        "Llama", _RMS, _DYNAMIC | {"max_position_embeddings": 24}, max_length=50
    ),
    "mistral": TinyModel("Mistral", _RMS, {"sliding_window": None, "head_dim": 14}),
    "mistral, window": TinyModel("Mistral", _RMS, {"sliding_window": 19}),
    "qwen2, window named only": TinyModel(
        "Qwen2", _RMS, {"sliding_window": 7, "max_window_layers": 1, "tie_word_embeddings": True}
    ),
    "qwen2, window in a layer": TinyModel(
        "Qwen2",
        _RMS,
        {"use_sliding_window": True, "sliding_window": 13, "max_window_layers": 1},
    ),
    "qwen3": TinyModel("Qwen3", _RMS, {"head_dim": 14, "tie_word_embeddings": True}),
    "qwen3, biases, layer types": TinyModel(
        "Qwen3",
        _RMS,
        {
            "head_dim": 10,
            "attention_bias": True,
            "use_sliding_window": True,
            "sliding_window": 9,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "phi3": TinyModel("Phi3", _RMS),
    "phi3, window": TinyModel("Phi3", _RMS, {"sliding_window": 19}),
    "phi3, longrope within": TinyModel("Phi3", _RMS, _longrope(5), max_length=32),
    "phi3, longrope beyond": TinyModel("Phi3", _RMS, _longrope(5), max_length=50),
    "phi3, 4-mini": TinyModel(
        "Phi3",
        _RMS,
        {
            **_longrope(3),
            "hidden_size": 48,
            "tie_word_embeddings": True,
            "partial_rotary_factor": 0.75,
            "max_position_embeddings": 64,
        },
        max_length=50,
    ),
    "mixtral": TinyModel("Mixtral", _RMS, _MIXTRAL),
    "mixtral, stacked": TinyModel("Mixtral", _RMS, _MIXTRAL | {"head_dim": 14}, stacked=True),
    "qwen3-moe": TinyModel("Qwen3Moe", _RMS, _QWEN3_MOE | {"norm_topk_prob": True}),
    "qwen3-moe, a dense layer": TinyModel(
        "Qwen3Moe", _RMS, _QWEN3_MOE | {"mlp_only_layers": [0], "tie_word_embeddings": True}
    ),
    "qwen3-moe, every second layer, stacked": TinyModel(
        "Qwen3Moe", _RMS, _QWEN3_MOE | {"decoder_sparse_step": 2}, stacked=True
    ),
    "opt": TinyModel("OPT", _LAYER | _OPT),
    "opt, 350m": TinyModel(
        "OPT", _LAYER | _OPT, {"do_layer_norm_before": False, "word_embed_proj_dim": 24}
    ),
    "opt, neither biases nor weights of norms, untied": TinyModel(
        "OPT",
        _LAYER | _OPT,
        {
            "enable_bias": False,
            "layer_norm_elementwise_affine": False,
            "activation_function": "gelu",
            "tie_word_embeddings": False,
            "_remove_final_layer_norm": True,
        },
    ),
    "falcon, 7b": TinyModel("Falcon", _LAYER | _FALCON),
    "falcon, 40b": TinyModel(
        "Falcon", _LAYER | _FALCON, {"new_decoder_architecture": True, "num_kv_heads": 2}
    ),
    "falcon, 11b": TinyModel(
        "Falcon",
        _LAYER | _FALCON,
        {
            "new_decoder_architecture": True,
            "num_kv_heads": 3,
            "num_ln_in_parallel_attn": 1,
            "tie_word_embeddings": False,
        },
    ),
    "falcon, sequential, a key head each, biases": TinyModel(
        "Falcon",
        _LAYER | _FALCON,
        {"parallel_attn": False, "multi_query": False, "bias": True},
    ),
    "gpt-neox": TinyModel("GPTNeoX", _LAYER | _NEOX),
    "gpt-neox, sequential, tanh, no biases": TinyModel(
        "GPTNeoX",
        _LAYER | _NEOX,
        {
            "use_parallel_residual": False,
            "hidden_act": "gelu_fast",
            "attention_bias": False,
            "rotary_pct": 1.0,
        },
    ),
}
"""By what they show. Head sizes are no powers of two, windows are shorter than prompts."""
