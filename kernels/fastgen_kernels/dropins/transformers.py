"""`attn_implementation="fastgen"` for transformers: see `register`.

Every architecture that takes its attention from transformers' interface, with dynamic and static
caches, padded batches, sliding windows and soft caps, and continuous batching. transformers hands
keys and values over in rows of its own cache; here they are copied into blocks, once a layer.
"""

import threading
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.generation.continuous_batching.continuous_api import ContinuousBatchingManager
from transformers.masking_utils import sdpa_mask

from fastgen_kernels.dropins.arrangement import arrange
from fastgen_kernels.dropins.devices import kernels_on
from fastgen_kernels.dropins.spans import Spans, causal_spans, masked_spans, ragged_spans
from fastgen_kernels.dropins.unsupported import UnsupportedAttentionError
from fastgen_kernels.heads import Heads

NAME: Final = "fastgen"
_REFUSED: Final = {
    "s_aux": "attention sinks",
    "position_bias": "position biases",
    "head_mask": "head masks",
    "block_table": "transformers' own block tables",
}


def register() -> None:
    """Makes `attn_implementation="fastgen"` known; more than once is no harm.

    Continuous batching has a fixed list of implementations; the method that refuses others is
    wrapped, so that it lets this one pass.
    """
    AttentionInterface.register(NAME, attention_forward)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    original = ContinuousBatchingManager.switch_to_cb_friendly_attn
    if getattr(original, "knows_fastgen", False):
        return

    def switch_unless_fastgen(self: Any, model: Any, *args: Any, **kwargs: Any) -> None:
        if model.config._attn_implementation != NAME:
            original(self, model, *args, **kwargs)

    switch_unless_fastgen.knows_fastgen = True  # type: ignore[attr-defined]
    ContinuousBatchingManager.switch_to_cb_friendly_attn = switch_unless_fastgen  # type: ignore[method-assign]


@torch.compiler.disable  # type: ignore[untyped-decorator]
def attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    cu_seq_lens_q: Tensor | None = None,
    cu_seq_lens_k: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """query: [B, heads, Q, D]; key, value: [B, kv heads, K, D]; gives [B, Q, heads, D].

    Not compiled: the plan is made on the host.

    attention_mask: see `masked_spans`; None for causal attention. cu_seq_lens_q, cu_seq_lens_k: see
    `ragged_spans`, of continuous batching and packed requests. Queries that see no key give 0.
    Raises UnsupportedAttentionError, or UnsupportedDeviceError.
    """
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    _check(query, key, value, dropout, causal or query.shape[2] == 1, kwargs)
    if getattr(module, "sinks", None) is not None:
        raise _refusal("attention sinks")
    sources = (attention_mask, cu_seq_lens_q, cu_seq_lens_k)
    plan = _PLANS.find(getattr(module, "layer_idx", None), query, key, sources, sliding_window)
    return _attend(query, key, value, plan, scaling, softcap), None


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """What layers of a forward pass have in common.

    queries: see `Arrangement`; None for all. key_rows, key_places: as there. attention: of
    `plan_attention`, None when no query sees anything. sources: kept, so that no other tensor gets
    their id.
    """

    queries: Tensor | None
    key_rows: Tensor
    key_places: Tensor
    attention: Any
    sources: tuple[Tensor | None, ...]


class _Plans(threading.local):
    """The plans of one forward pass, which ends where layers begin anew."""

    def __init__(self) -> None:
        self._layer = -1
        self._plans: dict[tuple[object, ...], _Plan] = {}

    def find(
        self,
        layer: int | None,
        query: Tensor,
        key: Tensor,
        sources: tuple[Tensor | None, ...],
        window: int | None,
    ) -> _Plan:
        """Made once for layers of the same shapes that are given the same tensors."""
        if layer is None or layer <= self._layer:
            self._plans.clear()
        self._layer = -1 if layer is None else layer
        identities = tuple(id(source) for source in sources)
        wanted = (identities, query.shape, key.shape, key.dtype, key.device, window)
        if wanted not in self._plans:
            self._plans[wanted] = _make_plan(query, key, sources, window)
        return self._plans[wanted]


_PLANS: Final = _Plans()


def _make_plan(
    query: Tensor, key: Tensor, sources: tuple[Tensor | None, ...], window: int | None
) -> _Plan:
    arrangement = arrange(_spans(query, key, sources, window))
    batch, device = arrangement.batch, key.device
    attention = None
    if len(batch.lengths):
        heads = Heads(query.shape[1], key.shape[1], query.shape[3])
        attention = kernels_on(device).plan_attention(
            batch, heads, key.dtype, device, arrangement.window
        )
    queries, rows, places = (
        torch.from_numpy(indices).to(device)
        for indices in (arrangement.queries, arrangement.key_rows, arrangement.key_places)
    )
    all_of_them = len(queries) == query.shape[0] * query.shape[2]
    return _Plan(None if all_of_them else queries, rows, places, attention, sources)


def _spans(
    query: Tensor, key: Tensor, sources: tuple[Tensor | None, ...], window: int | None
) -> Spans:
    mask, query_bounds, key_bounds = sources
    num_rows, num_queries, num_keys = query.shape[0], query.shape[2], key.shape[2]
    if mask is not None:
        return masked_spans(mask.expand(num_rows, -1, -1, -1), num_keys)
    if query_bounds is None or key_bounds is None:
        return causal_spans(num_rows, num_queries, num_keys)
    if num_rows != 1:
        raise _refusal(f"packed requests in {num_rows} rows instead of one")
    return ragged_spans(query_bounds, key_bounds, num_queries, num_keys, window)


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    plan: _Plan,
    scale: float | None,
    soft_cap: float | None,
) -> Tensor:
    num_rows, num_heads, num_queries, size = query.shape
    shape = (num_rows, num_queries, num_heads, size)
    tokens = query.transpose(1, 2).reshape(-1, num_heads, size).contiguous()
    if plan.attention is None:
        return torch.zeros_like(tokens).view(shape)
    cache = _cache(key, value, plan)
    attention = kernels_on(key.device).attention
    if plan.queries is None:
        return attention(tokens, cache, plan.attention, scale, soft_cap).view(shape)
    seeing = attention(tokens[plan.queries], cache, plan.attention, scale, soft_cap)
    out = torch.zeros_like(tokens)
    out[plan.queries] = seeing.view(-1, num_heads, size)
    return out.view(shape)


def _cache(key: Tensor, value: Tensor, plan: _Plan) -> Tensor:
    """[2, slots, kv heads, D], as the kernels read it."""
    shape = (2, len(plan.key_rows), key.shape[1], key.shape[3])
    cache = torch.empty(shape, dtype=key.dtype, device=key.device)
    for copy, part in zip(cache, (key, value), strict=True):
        copy.copy_(part.transpose(1, 2)[plan.key_rows, plan.key_places])
    return cache


def _check(
    query: Tensor, key: Tensor, value: Tensor, dropout: float, causal: bool, kwargs: dict[str, Any]
) -> None:
    """Raises UnsupportedAttentionError."""
    if torch.is_grad_enabled() and any(part.requires_grad for part in (query, key, value)):
        raise UnsupportedAttentionError(
            "gradients: FastGen's kernels have none; call the model under torch.inference_mode(), "
            "or train with attn_implementation='sdpa'"
        )
    if dropout:
        raise _refusal(f"dropout of {dropout} (call model.eval())")
    if not causal:
        raise _refusal("attention that is not causal")
    for name, meaning in _REFUSED.items():
        if kwargs.get(name) is not None:
            raise _refusal(f"{meaning} ({name})")
    if kwargs.get("output_attentions"):
        raise _refusal("attention weights (output_attentions=True)")
    if key.shape != value.shape or key.shape[-1] != query.shape[-1]:
        raise _refusal(
            f"queries, keys and values of sizes {query.shape[-1]}, {key.shape[-1]} and "
            f"{value.shape[-1]}: one size for all"
        )
    if not query.dtype == key.dtype == value.dtype:
        raise _refusal(f"queries of {query.dtype}, keys of {key.dtype}, values of {value.dtype}")


def _refusal(what: str) -> UnsupportedAttentionError:
    return UnsupportedAttentionError(
        f"FastGen's kernels do not take {what}; use attn_implementation='eager' or 'sdpa'"
    )
