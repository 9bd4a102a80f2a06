"""What a GGUF file's metadata says about its model."""

from collections.abc import Mapping
from typing import Any

from fastgen_runtime.models.config_values import integer, number
from fastgen_runtime.models.model_config import ModelConfig, unsupported
from fastgen_runtime.models.rope_config import rope_scaling_from_gguf


def config_from_gguf(metadata: Mapping[str, Any], rope_factors: tuple[float, ...]) -> ModelConfig:
    """From a GGUF file's metadata; rope_factors: its tensor `rope_freqs.weight`, else empty."""
    architecture = str(metadata.get("general.architecture", "unnamed"))
    if architecture != "llama":
        raise unsupported(
            f"the GGUF architecture {architecture} is not supported; supported: llama; others as "
            "Hugging Face folders with safetensors"
        )
    values = {
        key.removeprefix("llama."): value
        for key, value in metadata.items()
        if key.startswith("llama.")
    }
    if values.get("expert_count"):
        raise unsupported(
            "mixture-of-experts GGUF files are not supported: use the Hugging Face folder"
        )
    hidden_size, num_heads = (
        integer(values, "embedding_length"),
        integer(values, "attention.head_count"),
    )
    head_dim = integer(values, "attention.key_length", hidden_size // max(num_heads, 1))
    for name in ("attention.value_length", "rope.dimension_count"):
        if integer(values, name, head_dim) != head_dim:
            raise unsupported(f"a {name} that differs from the head's {head_dim} is not supported")
    tokens = metadata.get("tokenizer.ggml.tokens") or ()
    return ModelConfig(
        architecture="LlamaForCausalLM",
        num_layers=integer(values, "block_count"),
        hidden_size=hidden_size,
        intermediate_size=integer(values, "feed_forward_length"),
        num_heads=num_heads,
        num_kv_heads=integer(values, "attention.head_count_kv", num_heads),
        head_dim=head_dim,
        vocab_size=integer(values, "vocab_size", len(tokens)),
        max_positions=integer(values, "context_length"),
        norm_eps=number(values, "attention.layer_norm_rms_epsilon", 1e-5),
        rope_theta=number(values, "rope.freq_base", 10_000.0),
        rope_scaling=rope_scaling_from_gguf(values, rope_factors),
        tied_embeddings=False,
    )
