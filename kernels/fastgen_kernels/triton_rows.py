"""Where the operations are implemented in Triton, for the dispatch table.

By name, because Triton is imported where a GPU is used and nowhere else.
"""

from collections.abc import Mapping
from typing import Final

ROWS: Final[Mapping[str, str]] = {
    "rms_norm": "norm:rms_norm",
    "add_rms_norm": "norm:add_rms_norm",
    "layer_norm": "norm:layer_norm",
    "add_layer_norm": "norm:add_layer_norm",
    "rotary": "rotary:rotary",
    "activate": "activation:activate",
    "gate": "activation:gate",
    "kv_write": "kv_cache:kv_write",
    "plan_attention": "attention:plan_attention",
    "attention": "attention:attention",
    "pack_quantized": "quantized:pack_quantized",
    "route": "route:route",
    "pack_experts": "experts:pack_experts",
    "experts": "experts:experts",
    "sample": "sampling:sample",
    "logprobs": "token_logprobs:logprobs",
}
"""By the operation's name in `dispatch.Op`: module of `triton_kernels`, and function."""
