"""What each architecture calls its tensors, and how those are laid out that hold several."""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final


class QKVOrder(StrEnum):
    """Rows of a tensor that holds queries, keys and values.

    BLOCKS: all queries, all keys, all values. GROUPS: for each key/value head its query heads, its
    key, its value.
    """

    BLOCKS = "blocks"
    GROUPS = "groups"


@dataclass(frozen=True, slots=True)
class ExpertNames:
    """Names within a layer. stacked: of a module that holds all experts' weights in two tensors,
    `gate_up_proj` [experts, 2 I, H] and `down_proj` [experts, H, I], as transformers 5 may write
    them; stacked_router: the router beside it. Else each expert has three linear layers of its own
    in `each`, with a number for `{}`.
    """

    router: str
    each: str
    gate: str
    up: str
    down: str
    stacked: str = "mlp.experts"
    stacked_router: str = "mlp.gate"


@dataclass(frozen=True, slots=True)
class TensorNames:
    """Modules, `.weight` and `.bias` left out. base: the prefix of all but the output layer's.

    layers: prefix of the layers' numbers, relative to `base`; the names of a layer's parts are
    relative to it. qkv, up: one name for each part, or a single one for all of them. ignored: ends
    of names of tensors that follow from the configuration.
    """

    base: str
    embedding: str
    layers: str
    final_norm: str
    attention_norm: str
    feed_forward_norm: str
    qkv: tuple[str, ...]
    output: str
    up: tuple[str, ...]
    down: str
    qkv_order: QKVOrder = QKVOrder.BLOCKS
    head: str = "lm_head"
    query_norm: str = ""
    key_norm: str = ""
    positions: str = ""
    project_in: str = ""
    project_out: str = ""
    experts: ExpertNames | None = None
    ignored: tuple[str, ...] = ()


LLAMA: Final = TensorNames(
    base="model.",
    embedding="embed_tokens",
    layers="layers.",
    final_norm="norm",
    attention_norm="input_layernorm",
    feed_forward_norm="post_attention_layernorm",
    qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    output="self_attn.o_proj",
    up=("mlp.gate_proj", "mlp.up_proj"),
    down="mlp.down_proj",
)
QWEN3: Final = replace(LLAMA, query_norm="self_attn.q_norm", key_norm="self_attn.k_norm")
PHI3: Final = replace(LLAMA, qkv=("self_attn.qkv_proj",), up=("mlp.gate_up_proj",))
MIXTRAL: Final = replace(
    LLAMA,
    experts=ExpertNames("block_sparse_moe.gate", "block_sparse_moe.experts.{}", "w1", "w3", "w2"),
)
QWEN3_MOE: Final = replace(
    QWEN3,
    experts=ExpertNames("mlp.gate", "mlp.experts.{}", "gate_proj", "up_proj", "down_proj"),
)
OPT: Final = TensorNames(
    base="model.decoder.",
    embedding="embed_tokens",
    layers="layers.",
    final_norm="final_layer_norm",
    attention_norm="self_attn_layer_norm",
    feed_forward_norm="final_layer_norm",
    qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    output="self_attn.out_proj",
    up=("fc1",),
    down="fc2",
    positions="embed_positions",
    project_in="project_in",
    project_out="project_out",
)
FALCON: Final = TensorNames(
    base="transformer.",
    embedding="word_embeddings",
    layers="h.",
    final_norm="ln_f",
    attention_norm="input_layernorm",
    feed_forward_norm="post_attention_layernorm",
    qkv=("self_attention.query_key_value",),
    qkv_order=QKVOrder.GROUPS,
    output="self_attention.dense",
    up=("mlp.dense_h_to_4h",),
    down="mlp.dense_4h_to_h",
)
GPT_NEOX: Final = TensorNames(
    base="gpt_neox.",
    embedding="embed_in",
    layers="layers.",
    final_norm="final_layer_norm",
    attention_norm="input_layernorm",
    feed_forward_norm="post_attention_layernorm",
    qkv=("attention.query_key_value",),
    qkv_order=QKVOrder.GROUPS,
    output="attention.dense",
    up=("mlp.dense_h_to_4h",),
    down="mlp.dense_4h_to_h",
    head="embed_out",
    ignored=("attention.bias", "attention.masked_bias"),
)
