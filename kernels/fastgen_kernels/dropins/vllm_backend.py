"""FastGen's kernels as an attention backend of vLLM 0.32; see `vllm_plugin` for how it gets there.

A step's plan is made on the host, from lengths and block tables that are copied there. So vLLM
captures the layers around it in CUDA graphs, and not the attention.
"""

from typing import Any

import torch
from torch import Tensor
from vllm.v1.attention.backend import (  # type: ignore[import-not-found]
    AttentionBackend,
    AttentionImpl,
    AttentionMetadataBuilder,
    AttentionType,
)
from vllm.v1.kv_cache_interface import KVCacheLayout  # type: ignore[import-not-found]

from fastgen_kernels.dispatch import AMPERE
from fastgen_kernels.dropins.devices import kernels_on
from fastgen_kernels.dropins.unsupported import UnsupportedAttentionError
from fastgen_kernels.dropins.vllm_blocks import Metadata, as_slots, ragged_batch, write_slots
from fastgen_kernels.gpu_limits import BLOCK_SIZES, LARGEST_HEAD
from fastgen_kernels.heads import Heads


class FastGenAttentionBackend(AttentionBackend):  # type: ignore[misc]
    """What vLLM asks before it takes the backend."""

    forward_includes_kv_cache_update = False
    supported_dtypes = [torch.float16, torch.bfloat16, torch.float32]  # noqa: RUF012
    supported_kv_cache_dtypes = ["auto", "float16", "bfloat16"]  # noqa: RUF012

    @staticmethod
    def get_name() -> str:
        # On CPUs vLLM knows a backend by the name of the one that it stands for.
        return "CPU_ATTN" if _on_cpu() else "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type["FastGenAttentionImpl"]:
        return FastGenAttentionImpl

    @staticmethod
    def get_builder_cls() -> type["FastGenMetadataBuilder"]:
        return FastGenMetadataBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[int]:
        return list(BLOCK_SIZES)

    @classmethod
    def supported_kv_cache_layouts(cls) -> tuple[Any, ...]:
        return (KVCacheLayout.LBHNC,)

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool:
        return head_size % 8 == 0 and head_size <= LARGEST_HEAD

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return True

    @classmethod
    def supports_kv_connector(cls) -> bool:
        """What lies in a block is not what other backends put there."""
        return False

    @classmethod
    def supports_compute_capability(cls, capability: Any) -> bool:
        return bool((capability.major, capability.minor) >= AMPERE)

    @classmethod
    def supports_combination(
        cls, head_size: int, dtype: torch.dtype, *others: Any, **named: Any
    ) -> str | None:
        """Asked on GPUs only."""
        if dtype == torch.float32:
            return "FastGen's kernels take float16 or bfloat16 on GPUs: set dtype"
        return None


class FastGenMetadataBuilder(AttentionMetadataBuilder):  # type: ignore[misc]
    """A step's requests into a ragged batch."""

    def __init__(
        self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)

    def build(
        self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False
    ) -> Metadata:
        """Raises UnsupportedAttentionError for attention that is not causal."""
        told = common_attn_metadata
        if told.causal is not True:
            raise _refusal("attention that is not causal")
        block_size = self.kv_cache_spec.block_size
        batch = ragged_batch(
            told.query_start_loc_cpu, told.seq_lens, told.block_table_tensor, block_size
        )
        return Metadata(batch, int(batch.lengths.sum()), told.slot_mapping)


class FastGenAttentionImpl(AttentionImpl):  # type: ignore[misc]
    """One layer. Raises UnsupportedAttentionError for what the kernels do not compute."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        sinks: Tensor | None = None,
    ) -> None:
        if alibi_slopes is not None:
            raise _refusal("ALiBi slopes")
        if sinks is not None:
            raise _refusal("attention sinks")
        if attn_type != AttentionType.DECODER:
            raise _refusal(f"attention of the kind {attn_type}")
        if kv_cache_dtype not in FastGenAttentionBackend.supported_kv_cache_dtypes:
            raise _refusal(f"a KV cache of {kv_cache_dtype} (kv_cache_dtype='auto' is taken)")
        self.heads = Heads(num_heads, num_kv_heads or num_heads, head_size)
        self.num_heads, self.head_size, self.scale = num_heads, head_size, float(scale)
        self.num_kv_heads = self.heads.num_kv
        self.sliding_window = sliding_window
        self.soft_cap = logits_soft_cap or None
        self.kv_cache_dtype = kv_cache_dtype
        self.attn_type = attn_type
        self.kv_sharing_target_layer_name = kv_sharing_target_layer_name

    def do_kv_cache_update(
        self, layer: Any, key: Tensor, value: Tensor, kv_cache: Tensor, slot_mapping: Tensor
    ) -> None:
        """key, value: [tokens, kv heads, D], as many as slots or padded; a slot below 0 is none."""
        if kv_cache.numel() == 0:
            return
        count = len(slot_mapping)
        key, value = key[:count].contiguous(), value[:count].contiguous()
        if key.device.type == "cpu":  # the GPUs' kernel leaves those out itself
            kept = slot_mapping >= 0
            key, value, slot_mapping = key[kept], value[kept], slot_mapping[kept]
        slots = write_slots(slot_mapping.to(torch.int64), kv_cache.shape[2])
        kernels_on(key.device).kv_write(key, value, as_slots(kv_cache), slots)

    def forward(
        self,
        layer: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: Metadata | None,
        output: Tensor,
        output_scale: Tensor | None = None,
        output_block_scale: Tensor | None = None,
    ) -> Tensor:
        """query, output: [tokens, heads, D]; gives output. Without metadata vLLM warms up."""
        if output_scale is not None or output_block_scale is not None:
            raise _refusal("quantized outputs (the pass fuse_attn_quant)")
        if attn_metadata is None or attn_metadata.num_tokens == 0:
            return output
        count = attn_metadata.num_tokens
        query = query[:count].reshape(count, self.num_heads, self.head_size)
        plan = attn_metadata.plan(self.heads, query.dtype, query.device, self.sliding_window)
        result = kernels_on(query.device).attention(
            query, as_slots(kv_cache), plan, self.scale, self.soft_cap
        )
        output[:count].view(count, -1).copy_(result)
        return output


def _on_cpu() -> bool:
    from vllm.platforms import current_platform  # type: ignore[import-not-found]

    return bool(current_platform.is_cpu())


def _refusal(what: str) -> UnsupportedAttentionError:
    return UnsupportedAttentionError(
        f"FastGen's kernels do not take {what}; choose another attention_backend, or on CPUs leave "
        "FASTGEN_VLLM_CPU unset"
    )
