"""What config.json says, per architecture: its traps, and files that say nonsense."""

import contextlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastgen_api.names import StartupFailure
from fastgen_kernels.activation import Activation
from fastgen_runtime.models.architectures import ARCHITECTURES, config_from_hf, tensor_names
from fastgen_runtime.models.model_config import Block, ModelConfig, NormKind, RopeKind
from fastgen_runtime.startup_error import ModelError

BASE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "ffn_dim": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "vocab_size": 8,
    "max_position_embeddings": 128,
}
LONGROPE = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}


def read(architecture: str, **changes: Any) -> ModelConfig:
    return config_from_hf(BASE | {"architectures": [f"{architecture}ForCausalLM"]} | changes)


def test_the_table_of_architectures() -> None:
    assert [name.removesuffix("ForCausalLM") for name in ARCHITECTURES] == [
        "Llama", "Mistral", "Qwen2", "Qwen3", "Phi3", "Mixtral", "Qwen3Moe", "OPT", "Falcon",
        "GPTNeoX",
    ]  # fmt: skip
    with pytest.raises(ModelError, match=r"MambaForCausalLM is not .* LlamaForCausalLM, .*NeoX"):
        config_from_hf({"architectures": ["MambaForCausalLM"]})
    with pytest.raises(ModelError, match="the architecture mamba is not supported"):
        config_from_hf({"model_type": "mamba"})


def test_heads_that_are_not_said() -> None:
    assert read("Llama").num_kv_heads == 4
    assert read("Llama").head_dim == 16
    assert read("Llama", num_key_value_heads=None, head_dim=None).head_dim == 16
    assert read("Qwen3").head_dim == 128
    assert read("Qwen3", head_dim=24).head_dim == 24


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({}, ()),
        ({"sliding_window": 7, "max_window_layers": 1}, ()),
        ({"sliding_window": 7, "max_window_layers": 1, "use_sliding_window": True}, (None, 7, 7)),
        ({"sliding_window": None, "use_sliding_window": True}, ()),
        (
            {
                "sliding_window": 7,
                "use_sliding_window": True,
                "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            },
            (7, None, 7),
        ),
    ],
)
def test_windows_of_qwen(changes: dict[str, Any], windows: tuple[int | None, ...]) -> None:
    assert read("Qwen2", **changes).windows == windows
    assert read("Qwen3", **changes).windows == windows


def test_windows_of_others() -> None:
    assert read("Mistral", sliding_window=7).windows == (7, 7, 7)
    assert read("Mistral", sliding_window=None).windows == ()
    assert read("Phi3", sliding_window=7).distinct_windows == (7,)
    assert read("Phi3", sliding_window=128).distinct_windows == (None,), "as long as any request"
    assert read("Llama", sliding_window=7).windows == (), "which has none"
    assert read("Qwen3Moe", sliding_window=7, use_sliding_window=True).windows == (7, 7, 7)


def test_falcon_shapes() -> None:
    small = read("Falcon", multi_query=True, num_kv_heads=71)
    assert (small.num_kv_heads, small.block, small.intermediate_size) == (1, Block.PARALLEL, 256)
    assert tensor_names(small).attention_norm == "input_layernorm"
    large = read("Falcon", new_decoder_architecture=True, num_kv_heads=2)
    assert (large.num_kv_heads, large.block) == (2, Block.PARALLEL_NORMS)
    assert tensor_names(large).attention_norm == "ln_attn"
    middle = read("Falcon", new_decoder_architecture=True, num_ln_in_parallel_attn=1)
    assert (middle.num_kv_heads, middle.block) == (4, Block.PARALLEL)
    assert read("Falcon", parallel_attn=False, multi_query=False).block is Block.PRE_NORM
    assert read("Falcon").tied_embeddings
    assert not read("Falcon").qkv_bias


def test_opt() -> None:
    config = read("OPT", word_embed_proj_dim=32, do_layer_norm_before=False)
    assert (config.position_offset, config.rotated, config.embedding_size) == (2, 0, 32)
    assert (config.block, config.final_norm) == (Block.POST_NORM, False)
    assert (config.norm, config.activation) == (NormKind.LAYER, Activation.RELU)
    assert read("OPT").final_norm
    assert read("OPT").tied_embeddings


def test_partial_rotary() -> None:
    assert read("GPTNeoX").rotated == 4
    assert read("GPTNeoX", rotary_pct=0.5, rotary_emb_base=5e4).rope_theta == 5e4
    assert read("GPTNeoX", rope_parameters={"partial_rotary_factor": 1.0}).rotated == 16
    assert read("Phi3", partial_rotary_factor=0.75).rotated == 12


def test_experts() -> None:
    mixtral = read("Mixtral", rope_theta=None)
    assert mixtral.rope_theta == 1e6
    assert mixtral.experts is not None
    assert (mixtral.experts.count, mixtral.experts.renormalise) == (8, True)
    qwen = read("Qwen3Moe", num_experts=4, num_experts_per_tok=2, mlp_only_layers=[0])
    assert qwen.experts is not None
    assert qwen.experts.layers == (False, True, True)
    assert not qwen.experts.renormalise
    every_second = read("Qwen3Moe", decoder_sparse_step=2).experts
    assert every_second is not None
    assert every_second.layers == (False, True, False)


def test_rope_of_old_and_new_files() -> None:
    yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
    old = read("Qwen2", rope_scaling=yarn, rope_theta=1e6)
    new = read("Qwen2", rope_parameters=yarn | {"rope_theta": 1e6})
    assert old == new
    assert (old.rope_theta, old.max_positions) == (1e6, 512)
    multiplied = read("Qwen2", rope_scaling=yarn, max_position_embeddings=512)
    assert multiplied.max_positions == 512
    dynamic = read("Llama", rope_scaling={"type": "dynamic", "factor": 2.0})
    assert (dynamic.max_positions, dynamic.rope_scaling.original_max_positions) == (256, 128)


@pytest.mark.parametrize("name", ["su", "yarn", "longrope"])
def test_what_phi3_calls_longrope(name: str) -> None:
    config = read(
        "Phi3",
        model_type="phi3",
        original_max_position_embeddings=32,
        rope_scaling={"type": name, **LONGROPE},
    )
    scaling = config.rope_scaling
    assert (scaling.kind, scaling.factor) == (RopeKind.LONGROPE, 4.0)
    assert (scaling.original_max_positions, config.max_positions) == (32, 128)


@pytest.mark.parametrize(
    ("architecture", "changes", "words"),
    [
        ("Phi3", {"rope_scaling": {"type": "su", **LONGROPE, "long_factor": [1]}}, "has 1 numbers"),
        ("Phi3", {"partial_rotary_factor": 0.2}, "head_dim is 16, 3 of it rotated"),
        ("Phi3", {"partial_rotary_factor": 1.5}, "rotates 24 of 16"),
        ("Phi3", {"partial_rotary_factor": float("inf")}, "partial_rotary_factor is inf"),
        ("Llama", {"rope_theta": 0}, "rope_theta is 0.0"),
        ("Llama", {"rope_scaling": {"type": "linear", "factor": 0}}, "factor is 0.0"),
        ("Llama", {"tie_word_embeddings": "no"}, "tie_word_embeddings is 'no'"),
        ("Mistral", {"sliding_window": 0}, "sliding_window is below 1"),
        ("Mixtral", {"num_experts_per_tok": 9}, "uses 9 of 8 experts"),
        ("Qwen3Moe", {"decoder_sparse_step": 0}, "decoder_sparse_step is 0"),
        ("Qwen3Moe", {"mlp_only_layers": 3}, "mlp_only_layers is 3"),
        (
            "Qwen2",
            {"use_sliding_window": True, "sliding_window": 7, "layer_types": ["full_attention"]},
            "1 windows for 3 layers",
        ),
    ],
)
def test_contradictions_are_told(architecture: str, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words) as raised:
        read(architecture, **changes)
    assert raised.value.reason is StartupFailure.MODEL_INVALID


FIELDS = (
    *BASE, "num_key_value_heads", "head_dim", "hidden_act", "rms_norm_eps", "rope_theta",
    "rope_scaling", "rope_parameters", "tie_word_embeddings", "attention_bias", "mlp_bias",
    "sliding_window", "use_sliding_window", "max_window_layers", "layer_types",
    "partial_rotary_factor", "original_max_position_embeddings", "num_local_experts",
    "num_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob",
    "decoder_sparse_step", "mlp_only_layers", "enable_bias", "do_layer_norm_before",
    "word_embed_proj_dim", "activation_function", "num_kv_heads", "multi_query", "parallel_attn",
    "new_decoder_architecture", "num_ln_in_parallel_attn", "layer_norm_epsilon", "activation",
    "use_parallel_residual", "rotary_pct", "rotary_emb_base", "layer_norm_eps", "architectures",
    "quantization_config", "model_type", "alibi", "bias", "ffn_hidden_size", "dtype",
)  # fmt: skip
ROPE_FIELDS = (
    "rope_type", "type", "factor", "rope_theta", "low_freq_factor", "high_freq_factor",
    "original_max_position_embeddings", "short_factor", "long_factor", "attention_factor",
    "beta_fast", "beta_slow", "mscale", "truncate", "partial_rotary_factor",
)  # fmt: skip
SCALARS = (
    st.none() | st.booleans() | st.integers(-3, 300) | st.floats()
    | st.sampled_from(["gelu", "yarn", "longrope", "llama3", "dynamic", "linear", "x"])
)  # fmt: skip
VALUES = SCALARS | st.lists(SCALARS, max_size=3)
ROPES = st.dictionaries(st.sampled_from(ROPE_FIELDS), VALUES, max_size=6)


@settings(max_examples=300)
@given(
    st.sampled_from(list(ARCHITECTURES)),
    st.dictionaries(st.sampled_from(FIELDS), VALUES | ROPES, max_size=4),
)
def test_nonsense_is_told_not_crashed_on(architecture: str, changes: dict[str, Any]) -> None:
    with contextlib.suppress(ModelError):
        config_from_hf(BASE | {"architectures": [architecture]} | changes)
