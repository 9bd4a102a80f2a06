"""Tells before any weight is read whether a model fits the memory, and with which numbers."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Final

from fastgen_api.names import StartupFailure
from fastgen_api.spec import DType
from fastgen_runtime.engine import cores
from fastgen_runtime.log import log_event
from fastgen_runtime.models.capacity import (
    Packing,
    activation_bytes,
    activation_item_bytes,
    block_bytes,
    cache_bytes,
    mib,
    weight_bytes,
)
from fastgen_runtime.models.model_config import ModelConfig
from fastgen_runtime.startup_error import StartupError

_ITEM_BYTES: Final = {DType.FLOAT32: 4, DType.BFLOAT16: 2, DType.FLOAT16: 2}


@dataclass(frozen=True, slots=True)
class Offer:
    """What machine and control group offer. limit_bytes: None for no limit.

    resident_bytes: what this process holds already.
    """

    limit_bytes: int | None
    available_bytes: int
    resident_bytes: int
    memory_percent: int

    @property
    def total_bytes(self) -> int:
        """The limit, or the machine's memory where that is less."""
        machine = self.resident_bytes + self.available_bytes
        return machine if self.limit_bytes is None else min(machine, self.limit_bytes)

    def share(self, ranks: int) -> "Offer":
        """An equal part of all that there is for one of the ranks that compute side by side."""
        limit = self.limit_bytes
        return replace(
            self,
            limit_bytes=None if limit is None else limit // ranks,
            available_bytes=(self.resident_bytes + self.available_bytes) // ranks
            - self.resident_bytes,
        )


@dataclass(frozen=True, slots=True)
class Demand:
    """What is asked for.

    longest: tokens of the longest request. max_tokens, most_requests: of a step. least_tokens: what
    max_tokens may be lowered to where memory is short; None: not at all. ranks: among which the
    model is split. quantized: whether matrices of layers and output layer are held in 8 bits.
    """

    dtype: DType
    packing: Packing
    longest: int
    block_size: int
    max_tokens: int
    most_requests: int
    least_tokens: int | None = None
    ranks: int = 1
    quantized: bool = False


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes that are expected, on each rank.

    loading_bytes: what is there only while the weights are loaded; it may use what is kept back
    from serving, too: reserve_bytes. step_tokens: of the largest step. offered_bytes: for weights,
    activations and cache together. request_bytes: the cache of one longest request. num_blocks: of
    the cache; 0 where it does not fit.
    """

    weight_bytes: int
    loading_bytes: int
    activation_bytes: int
    step_tokens: int
    request_bytes: int
    offered_bytes: int
    reserve_bytes: int
    num_blocks: int

    @property
    def needed_bytes(self) -> int:
        """The least offer with which one request can be served."""
        serving = self.activation_bytes + self.request_bytes
        return self.weight_bytes + max(serving, self.loading_bytes - self.reserve_bytes)


def offer_now(memory_percent: int) -> Offer:
    """What there is before the weights are loaded."""
    return Offer(
        cores.memory_limit_bytes(),
        cores.memory_available_bytes(),
        cores.resident_bytes(),
        memory_percent,
    )


def plan_memory(
    config: ModelConfig, shapes: Mapping[str, tuple[int, ...]], demand: Demand, offer: Offer
) -> MemoryPlan:
    """config, offer: of a rank. shapes: of the checkpoint's tensors, by name."""
    item = _ITEM_BYTES[demand.dtype]
    weights = weight_bytes(
        config,
        shapes,
        item,
        packing=demand.packing,
        ranks=demand.ranks,
        quantized=demand.quantized,
    )
    activations = activation_bytes(
        config,
        demand.max_tokens,
        demand.most_requests,
        activation_item_bytes(demand.packing, item),
    )
    offered = cache_bytes(
        offer.limit_bytes, offer.available_bytes, offer.resident_bytes, offer.memory_percent, 0
    )
    block = block_bytes(config, demand.block_size, item)
    blocks_per_request = -(-demand.longest // demand.block_size)
    fitting = max(0, offered - weights.resident - activations) // block
    wanted = blocks_per_request * demand.most_requests
    return MemoryPlan(
        weight_bytes=weights.resident,
        loading_bytes=weights.largest,
        activation_bytes=activations,
        step_tokens=demand.max_tokens,
        request_bytes=blocks_per_request * block,
        offered_bytes=offered,
        reserve_bytes=offer.total_bytes * (100 - offer.memory_percent) // 100,
        num_blocks=min(fitting, wanted) if fitting >= blocks_per_request else 0,
    )


def preflight(
    config: ModelConfig, shapes: Mapping[str, tuple[int, ...]], demand: Demand, offer: Offer
) -> MemoryPlan:
    """Logs the plan, with smaller steps where memory is short for the largest.

    Raises StartupError with its numbers, and the way out, when it cannot be.
    """
    plan = plan_memory(config, shapes, demand, offer)
    least = demand.least_tokens or demand.max_tokens
    while plan.needed_bytes > plan.offered_bytes and demand.max_tokens > least:
        demand = replace(demand, max_tokens=max(least, demand.max_tokens // 2))
        plan = plan_memory(config, shapes, demand, offer)
    log_event("memory plan", dtype=str(demand.dtype), max_length=demand.longest, **asdict(plan))
    if plan.needed_bytes > plan.offered_bytes:
        raise StartupError(StartupFailure.OUT_OF_MEMORY, _refusal(config, plan, demand, offer))
    return plan


def _refusal(config: ModelConfig, plan: MemoryPlan, demand: Demand, offer: Offer) -> str:
    """The sentence with the numbers; ways out that are none are left out."""
    block = block_bytes(config, demand.block_size, _ITEM_BYTES[demand.dtype])
    left = plan.offered_bytes - plan.weight_bytes - plan.activation_bytes
    longest = max(0, left) // block * demand.block_size
    loading = plan.weight_bytes + plan.loading_bytes - plan.reserve_bytes
    can_load = loading <= plan.offered_bytes
    lacking = plan.needed_bytes - plan.offered_bytes
    total = offer.resident_bytes + offer.available_bytes
    source = "the machine's"
    if offer.limit_bytes is not None and offer.limit_bytes < total:
        total, source = offer.limit_bytes, "the memory limit of"
    # Rounded up: with as much more it does fit.
    lacking_in_all = -(-demand.ranks * lacking * 100 // (offer.memory_percent << 20))
    ways = [f"give it {lacking_in_all} MiB more memory"]
    if can_load and longest >= demand.block_size:
        ways.append(f"lower maxModelLength to {longest}")
    if demand.dtype is DType.FLOAT32:
        ways.append("choose the dtype BFloat16, which halves weights and cache")
    if not demand.quantized and not config.experts:
        ways.append("choose the quantization Int8 for smaller weights")
    each = "" if demand.ranks == 1 else f" {demand.ranks} ranks; each has"
    return (
        f"the model does not fit{each}: weights {mib(plan.weight_bytes)} as {demand.dtype}, "
        f"{mib(plan.loading_bytes)} more while they are loaded, activations "
        f"{mib(plan.activation_bytes)}, cache of one request of {demand.longest} tokens "
        f"{mib(plan.request_bytes)}; {mib(max(0, plan.offered_bytes))} of {source} "
        f"{mib(total)} are left for them at memoryPercent {offer.memory_percent}: "
        f"{', or '.join(ways)}"
    )
