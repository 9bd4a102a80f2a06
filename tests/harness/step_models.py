"""Models that differ in all that the compiled step is made for."""

from step_pair import tiny

from fastgen_kernels.activation import Activation
from fastgen_runtime.models.model_config import Block, Experts, ModelConfig, NormKind

MODELS: dict[str, tuple[ModelConfig, int, int | None]] = {
    "llama": (tiny(), 16, None),
    "heads of three vectors, norms of queries and keys, windows": (
        tiny(
            num_heads=6, num_kv_heads=2, head_dim=48, query_key_norm=True, windows=(21, None),
            tied_embeddings=False, qkv_bias=True,
        ),
        128,
        None,
    ),
    "parallel norms, a key head for all, biases": (
        tiny(
            block=Block.PARALLEL_NORMS, norm=NormKind.LAYER, norm_bias=True, num_kv_heads=1,
            gated=False, activation=Activation.GELU, qkv_bias=True, output_bias=True,
            mlp_bias=True, rotary_dim=6, intermediate_size=41,
        ),
        32,
        None,
    ),
    "parallel, a key head each": (
        tiny(
            block=Block.PARALLEL, norm=NormKind.LAYER, num_kv_heads=4, gated=False,
            activation=Activation.GELU_TANH, head_bias=True, tied_embeddings=False,
            hidden_size=33,
        ),
        64,
        None,
    ),
    "norms after, learned positions, no last norm": (
        tiny(
            block=Block.POST_NORM, norm=NormKind.LAYER, norm_bias=True, rotary_dim=0,
            position_offset=2, final_norm=False, gated=False, activation=Activation.RELU,
            output_bias=True,
        ),
        16,
        None,
    ),
    "experts in all layers": (
        tiny(experts=Experts(5, 2, 80, True, (True, True)), intermediate_size=80), 16, None,
    ),
    "experts between dense layers, more than a panel": (
        tiny(
            num_layers=3, experts=Experts(37, 4, 32, False, (False, True, False)), hidden_size=56,
            query_key_norm=True, activation=Activation.GELU_TANH,
        ),
        32,
        None,
    ),
    "one expert each, parallel norms": (
        tiny(
            block=Block.PARALLEL_NORMS, experts=Experts(3, 1, 48, False, (False, True)),
            hidden_size=33,
        ),
        16,
        None,
    ),
    "int8, groups that end within a row": (
        tiny(qkv_bias=True, output_bias=True, hidden_size=136, intermediate_size=208), 16, 64,
    ),
    "int8, odd numbers of inputs": (
        tiny(
            gated=False, mlp_bias=True, hidden_size=33, intermediate_size=41,
            tied_embeddings=False, head_bias=True,
        ),
        32,
        32,
    ),
}  # fmt: skip
"""With a block size, and groups of int8. Sizes are no multiples of a tile's, where they may be."""
