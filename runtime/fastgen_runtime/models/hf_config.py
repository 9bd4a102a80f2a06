"""What a Hugging Face config.json says, read as each architecture means it.

Facts: `configuration_*.py` and `modeling_*.py` of transformers.
"""

from collections.abc import Mapping
from typing import Any

from fastgen_kernels.activation import Activation
from fastgen_runtime.models.config_values import flag, integer, number
from fastgen_runtime.models.model_config import (
    Block,
    Experts,
    ModelConfig,
    NormKind,
    RopeScaling,
    invalid,
    unsupported,
)
from fastgen_runtime.models.rope_config import Rope, rope_from_hf

Raw = Mapping[str, Any]


def _config(raw: Raw, rope: Rope | None, head_dim: int, **differences: Any) -> ModelConfig:
    """What all architectures call the same, where `differences` do not say it already."""
    num_heads = integer(raw, "num_attention_heads")
    values: dict[str, Any] = {
        "architecture": "",
        "num_layers": integer(raw, "num_hidden_layers"),
        "hidden_size": integer(raw, "hidden_size"),
        "num_heads": num_heads,
        "num_kv_heads": num_heads,
        "head_dim": head_dim,
        "vocab_size": integer(raw, "vocab_size"),
        "dtype": raw.get("dtype") or raw.get("torch_dtype"),
    }
    if rope is None:
        values |= {"rope_theta": 1e4, "rope_scaling": RopeScaling(), "rotary_dim": 0}
    else:
        values |= {
            "max_positions": rope.max_positions,
            "rope_theta": rope.theta,
            "rope_scaling": rope.scaling,
            "rotary_dim": rope.rotary_dim,
        }
    return ModelConfig(**(values | differences))


def _equal_heads(raw: Raw) -> int:
    """Each head's share of the hidden size."""
    return integer(raw, "hidden_size") // max(integer(raw, "num_attention_heads"), 1)


def _activation(raw: Raw, name: str, default: str) -> Activation:
    try:
        return Activation.named(str(raw.get(name) or default))
    except ValueError as error:
        raise unsupported(str(error)) from error


def _rms(raw: Raw, *, eps: float = 1e-6, theta: float = 1e4, **differences: Any) -> ModelConfig:
    """Llama and what descends from it: gated, RMS norms, rotary embedding."""
    positions = integer(raw, "max_position_embeddings", 2048)
    head_dim = integer(raw, "head_dim", differences.pop("head_dim", _equal_heads(raw)))
    rope = rope_from_hf(raw, head_dim, max_positions=positions, default_theta=theta)
    if "intermediate_size" not in differences:
        differences["intermediate_size"] = integer(raw, "intermediate_size")
    return _config(
        raw,
        rope,
        head_dim,
        num_kv_heads=integer(raw, "num_key_value_heads", integer(raw, "num_attention_heads")),
        norm_eps=number(raw, "rms_norm_eps", eps),
        activation=_activation(raw, "hidden_act", "silu"),
        tied_embeddings=flag(raw, "tie_word_embeddings", False),
        **differences,
    )


def llama(raw: Raw) -> ModelConfig:
    """Versions 1 to 3.3."""
    bias = flag(raw, "attention_bias", False)
    return _rms(raw, qkv_bias=bias, output_bias=bias, mlp_bias=flag(raw, "mlp_bias", False))


def _windows(raw: Raw) -> tuple[int | None, ...]:
    """One window in all layers, or none."""
    if raw.get("sliding_window") is None:
        return ()
    return (integer(raw, "sliding_window"),) * integer(raw, "num_hidden_layers")


def mistral(raw: Raw) -> ModelConfig:
    """With a window up to version 0.1, without from 0.2 on."""
    return _rms(raw, windows=_windows(raw))


def phi3(raw: Raw) -> ModelConfig:
    """Versions 3, 3.5 and 4-mini, which rotates a part of each head."""
    return _rms(raw, eps=1e-5, windows=_windows(raw))


def _qwen_windows(raw: Raw) -> tuple[int | None, ...]:
    """Qwen's files name a window also where none is used; from `max_window_layers` on one is."""
    if not flag(raw, "use_sliding_window", False) or raw.get("sliding_window") is None:
        return ()
    window, layers = integer(raw, "sliding_window"), integer(raw, "num_hidden_layers")
    if (types := raw.get("layer_types")) is None:
        first = integer(raw, "max_window_layers", 28)
        return tuple(window if layer >= first else None for layer in range(layers))
    known = {"sliding_attention": window, "full_attention": None}
    if not isinstance(types, list) or not set(map(str, types)) <= known.keys():
        raise unsupported(f"layer_types {types!r} are not supported; supported: {list(known)}")
    return tuple(known[kind] for kind in types)


def qwen2(raw: Raw) -> ModelConfig:
    """Versions 2 and 2.5: biases on queries, keys and values only."""
    return _rms(raw, qkv_bias=True, windows=_qwen_windows(raw))


def qwen3(raw: Raw) -> ModelConfig:
    """Norms on queries and keys, before they are rotated."""
    bias = flag(raw, "attention_bias", False)
    return _rms(
        raw,
        head_dim=128,
        qkv_bias=bias,
        output_bias=bias,
        query_key_norm=True,
        windows=_qwen_windows(raw),
    )


def mixtral(raw: Raw) -> ModelConfig:
    """The chosen experts' weights add up to 1."""
    experts = Experts(
        count=integer(raw, "num_local_experts", 8),
        per_token=integer(raw, "num_experts_per_tok", 2),
        intermediate_size=integer(raw, "intermediate_size"),
        renormalise=True,
        layers=(True,) * integer(raw, "num_hidden_layers"),
    )
    return _rms(raw, eps=1e-5, theta=1e6, windows=_windows(raw), experts=experts)


def qwen3_moe(raw: Raw) -> ModelConfig:
    """Some layers may have a dense feed-forward part."""
    bias = flag(raw, "attention_bias", False)
    dense = raw.get("mlp_only_layers") or []
    if not isinstance(dense, list):
        raise invalid(f"the model's mlp_only_layers is {dense!r}: a list is needed")
    step = integer(raw, "decoder_sparse_step", 1)
    if step < 1:
        raise invalid(f"the model's decoder_sparse_step is {step}, below 1")
    experts = Experts(
        count=integer(raw, "num_experts", integer(raw, "num_local_experts", 128)),
        per_token=integer(raw, "num_experts_per_tok", 8),
        intermediate_size=integer(raw, "moe_intermediate_size", 768),
        renormalise=flag(raw, "norm_topk_prob", False),
        layers=tuple(
            layer not in dense and (layer + 1) % step == 0
            for layer in range(integer(raw, "num_hidden_layers"))
        ),
    )
    return _rms(
        raw,
        qkv_bias=bias,
        output_bias=bias,
        query_key_norm=True,
        windows=_windows(raw) if flag(raw, "use_sliding_window", False) else (),
        experts=experts,
    )


def _layer_norms(raw: Raw, rope: Rope | None, **differences: Any) -> ModelConfig:
    """What has layer norms with biases and a feed-forward part without a gate."""
    common = {"norm": NormKind.LAYER, "norm_bias": True, "gated": False}
    return _config(raw, rope, _equal_heads(raw), **(common | differences))


def opt(raw: Raw) -> ModelConfig:
    """Learned positions; the 350m model has norms after each part and narrower embeddings."""
    bias, affine = flag(raw, "enable_bias", True), flag(raw, "layer_norm_elementwise_affine", True)
    before = flag(raw, "do_layer_norm_before", True)
    return _layer_norms(
        raw,
        None,
        intermediate_size=integer(raw, "ffn_dim"),
        max_positions=integer(raw, "max_position_embeddings", 2048),
        position_offset=2,
        embedding_size=integer(raw, "word_embed_proj_dim", integer(raw, "hidden_size")),
        norm_eps=1e-5,
        norm_bias=affine,
        norm_affine=affine,
        final_norm=before and not flag(raw, "_remove_final_layer_norm", False),
        block=Block.PRE_NORM if before else Block.POST_NORM,
        activation=_activation(raw, "activation_function", "relu"),
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=bias,
        tied_embeddings=flag(raw, "tie_word_embeddings", True),
    )


def falcon(raw: Raw) -> ModelConfig:
    """The 7B, 40B and sequential shapes of rotary Falcon; raises ModelError for alibi."""
    if flag(raw, "alibi", False):
        raise unsupported(
            "Falcon with alibi positions is not supported; Falcon with rotary embedding is"
        )
    num_heads, bias = integer(raw, "num_attention_heads"), flag(raw, "bias", False)
    new = flag(raw, "new_decoder_architecture", False)
    parallel = flag(raw, "parallel_attn", True)
    if new and not parallel:
        raise unsupported("Falcon's new decoder without parallel attention is not supported")
    num_kv_heads = 1 if flag(raw, "multi_query", True) else num_heads
    block = Block.PARALLEL if parallel else Block.PRE_NORM
    if new:
        num_kv_heads = integer(raw, "num_kv_heads", num_heads)
        if integer(raw, "num_ln_in_parallel_attn", 2) == 2:
            block = Block.PARALLEL_NORMS
    hidden_size = integer(raw, "hidden_size")
    positions = integer(raw, "max_position_embeddings", 2048)
    return _layer_norms(
        raw,
        rope_from_hf(raw, _equal_heads(raw), max_positions=positions),
        intermediate_size=integer(raw, "ffn_hidden_size", 4 * hidden_size),
        num_kv_heads=num_kv_heads,
        norm_eps=number(raw, "layer_norm_epsilon", 1e-5),
        block=block,
        activation=_activation(raw, "activation", "gelu"),
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=bias,
        tied_embeddings=flag(raw, "tie_word_embeddings", True),
    )


def gpt_neox(raw: Raw) -> ModelConfig:
    """Pythia too."""
    bias = flag(raw, "attention_bias", True)
    parallel = flag(raw, "use_parallel_residual", True)
    rope = rope_from_hf(
        raw,
        _equal_heads(raw),
        max_positions=integer(raw, "max_position_embeddings", 2048),
        theta_name="rotary_emb_base",
        default_share=0.25,
        share_name="rotary_pct",
    )
    return _layer_norms(
        raw,
        rope,
        intermediate_size=integer(raw, "intermediate_size"),
        norm_eps=number(raw, "layer_norm_eps", 1e-5),
        block=Block.PARALLEL_NORMS if parallel else Block.PRE_NORM,
        activation=_activation(raw, "hidden_act", "gelu"),
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=True,
        tied_embeddings=flag(raw, "tie_word_embeddings", False),
    )
