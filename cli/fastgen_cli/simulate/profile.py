"""What a replica is in the simulation: how long its steps take, its memory, its cold start."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec

from fastgen_api.spec import BudgetMode
from fastgen_cli.errors import UserError
from fastgen_runtime.engine.latency import StepCost
from fastgen_runtime.engine.plan import Limits

CAUTION: Final = 1.05
"""What the engine's latency model adds to its predictions once they are right."""


@dataclass(frozen=True, slots=True)
class Profile:
    """A model on a device.

    cost: seconds of a step, as the engine's latency model counts them. num_blocks, block_size: of
    the KV cache. cold_start_seconds: from a pod's GPU to its readiness.
    """

    name: str
    cost: StepCost
    num_blocks: int
    block_size: int
    max_length: int
    max_concurrent_requests: int
    cold_start_seconds: float
    budget_tokens: int = 2048
    budget_mode: BudgetMode = BudgetMode.AUTO

    @property
    def limits(self) -> Limits:
        """The scheduler's limits. Traces hold no texts, so there is no prefix to be found again."""
        return Limits(
            budget_tokens=max(self.budget_tokens, self.max_concurrent_requests),
            max_running=self.max_concurrent_requests,
            max_waiting=self.max_concurrent_requests,
            max_length=self.max_length,
            budget_mode=self.budget_mode,
            prefix_caching=False,
        )

    def slowed(self, factor: float) -> "Profile":
        """The same model on a device that takes `factor` times as long."""
        cost = self.cost
        slow = StepCost(
            cost.base * factor,
            cost.per_token * factor,
            cost.per_attended * factor,
            cost.per_request * factor,
            cost.caution,
        )
        return self if factor == 1 else replace(self, cost=slow)


SMOLLM2_CPU: Final = Profile(
    name="smollm2-cpu",
    cost=StepCost(0.0606, 0.00169, 0.0, 0.0034, CAUTION),
    num_blocks=1024,
    block_size=64,
    max_length=8192,
    max_concurrent_requests=32,
    cold_start_seconds=20.0,
)
"""SmolLM2-135M in Float32 on two cores: least relative squares over the table "Step time against
tokens" of docs/engine.md, each cell within 25 %; contexts there are too equal to tell what
attention costs."""

LLAMA8B_L4: Final = Profile(
    name="llama-8b-l4",
    cost=StepCost(0.0535, 0.00022, 9e-9, 0.0005, CAUTION),
    num_blocks=660,
    block_size=64,
    max_length=16384,
    max_concurrent_requests=64,
    cold_start_seconds=60.0,
)
"""Llama-3.1-8B in 16 bits on an NVIDIA L4, from its datasheet (300 GB/s, 121 TFLOP/s dense, 24 GB)
and not measured: weights read once per step (16 GB / 300 GB/s), 16 GFLOP a token at 60 % of the
peak, 0.5 MFLOP a pair of tokens at half the peak, a context of 1,200 tokens (128 KB each) read for
each request. 5.5 GB are left for 42,000 tokens."""

PROFILES: Final = {profile.name: profile for profile in (LLAMA8B_L4, SMOLLM2_CPU)}
DEFAULT: Final = LLAMA8B_L4


class _File(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A profile as a JSON file holds it; what it leaves out is the default profile's."""

    base_seconds: float
    seconds_per_token: float
    seconds_per_attended: float = 0.0
    seconds_per_request: float = 0.0
    kv_blocks: int = DEFAULT.num_blocks
    kv_block_size: int = DEFAULT.block_size
    max_model_length: int = DEFAULT.max_length
    max_concurrent_requests: int = DEFAULT.max_concurrent_requests
    cold_start_seconds: float = DEFAULT.cold_start_seconds
    token_budget: int = DEFAULT.budget_tokens


def find_profile(text: str) -> Profile:
    """A profile by its name, or from a JSON file; raises UserError that names what is wrong."""
    if text in PROFILES:
        return PROFILES[text]
    path = Path(text)
    if not path.is_file():
        raise UserError(
            f"--model-latency {text}: neither a file nor one of {', '.join(sorted(PROFILES))}"
        )
    try:
        file = msgspec.json.decode(path.read_bytes(), type=_File)
    except (msgspec.DecodeError, OSError) as error:
        raise UserError(f"--model-latency {text}: {error}") from error
    return _checked(file, text)


def _checked(file: _File, text: str) -> Profile:
    for field in file.__struct_fields__:
        value = getattr(file, field)
        least = 1 if isinstance(value, int) else 0
        if value < least:
            raise UserError(f"--model-latency {text}: {field} must be at least {least}")
    if file.base_seconds + file.seconds_per_token <= 0:
        raise UserError(f"--model-latency {text}: a step of no time; set seconds_per_token")
    return Profile(
        name=Path(text).stem,
        cost=StepCost(
            file.base_seconds,
            file.seconds_per_token,
            file.seconds_per_attended,
            file.seconds_per_request,
            CAUTION,
        ),
        num_blocks=file.kv_blocks,
        block_size=file.kv_block_size,
        max_length=min(file.max_model_length, file.kv_blocks * file.kv_block_size),
        max_concurrent_requests=file.max_concurrent_requests,
        cold_start_seconds=file.cold_start_seconds,
        budget_tokens=file.token_budget,
    )
