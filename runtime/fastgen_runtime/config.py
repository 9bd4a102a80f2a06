"""A replica's settings, as its command line gives them."""

import os
import platform
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec

from fastgen_api.names import Port, StartupFailure
from fastgen_api.spec import BudgetMode, DType, Quantization, Speculation, most_step_tokens
from fastgen_runtime.engine.runner_config import CpuStepUse
from fastgen_runtime.startup_error import StartupError

BLOCK_SIZES: Final = (16, 32, 64, 128)


class MetricAliases(StrEnum):
    """Another engine, under whose names a replica tells its load as well."""

    VLLM = "vllm"


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a replica.

    max_model_length: None for the model's own. token_budget: most tokens of a step; None for the
    mode's own. speculation: how tokens are guessed. tensor_parallel_size: processes that the model
    is split among. cpu_step: whether CPUs compute a step as one op. metrics_port: where /metrics is
    served besides the HTTP port; None for nowhere. metric_aliases: under whose names the load is
    told as well.
    """

    model: str
    served_name: str | None = None
    dtype: DType = DType.AUTO
    quantization: Quantization = Quantization.AUTO
    max_model_length: int | None = None
    max_concurrent_requests: int = 256
    kv_block_size: int = 64
    token_budget_mode: BudgetMode = BudgetMode.AUTO
    token_budget: int | None = None
    prefix_caching: bool = True
    speculation: Speculation = Speculation.NONE
    memory_percent: int = 90
    tensor_parallel_size: int = 1
    cpu_step: CpuStepUse = CpuStepUse.AUTO
    slo_file: Path | None = None
    drain_seconds: float = 120
    http_port: int = Port.REPLICA_HTTP
    grpc_port: int = Port.REPLICA_GRPC
    metrics_port: int | None = None
    metric_aliases: MetricAliases | None = None
    host: str = "0.0.0.0"
    deployment: str = ""
    namespace: str = ""

    @property
    def budget_tokens(self) -> int:
        """Most tokens of a step."""
        return most_step_tokens(self.token_budget_mode, self.token_budget)

    @property
    def max_running(self) -> int:
        """Most requests in a step: each has a token in it, so no more than its budget."""
        return min(self.max_concurrent_requests, self.budget_tokens)

    def check(self) -> None:
        """Raises StartupError naming the flag whose value cannot be."""
        if self.kv_block_size not in BLOCK_SIZES:
            sizes = ", ".join(map(str, BLOCK_SIZES))
            raise _invalid("--kv-block-size", self.kv_block_size, f"one of {sizes}")
        least: tuple[tuple[str, float | None, float], ...] = (
            ("--max-model-length", self.max_model_length, 2),
            ("--max-concurrent-requests", self.max_concurrent_requests, 1),
            ("--token-budget", self.token_budget, 1),
            ("--tensor-parallel-size", self.tensor_parallel_size, 1),
            ("--drain-seconds", self.drain_seconds, 0),
        )
        for flag, value, lowest in least:
            if value is not None and not value >= lowest:
                raise _invalid(flag, value, f"{lowest:g} or more")
        if not 1 <= self.memory_percent <= 100:
            raise _invalid("--memory-percent", self.memory_percent, "between 1 and 100")
        for flag, port in (
            ("--http-port", self.http_port),
            ("--grpc-port", self.grpc_port),
            ("--metrics-port", self.metrics_port or 0),
        ):
            if not 0 <= port <= 65535:
                raise _invalid(flag, port, "between 0 and 65535; 0 takes a free port")


def _invalid(flag: str, value: object, wanted: str) -> StartupError:
    return StartupError(StartupFailure.CONFIG_INVALID, f"{flag} is {value}; it must be {wanted}")


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine process is told. max_length: most tokens of a request."""

    model_path: str
    dtype: DType
    quantization: Quantization
    max_length: int
    max_running: int
    max_waiting: int
    budget_tokens: int
    budget_mode: BudgetMode
    prefix_caching: bool
    speculation: Speculation
    block_size: int
    memory_percent: int
    tensor_parallel_size: int
    cpu_step: CpuStepUse
    channel: str
    parent_pid: int


def replica_name(environment: Mapping[str, str] = os.environ) -> str:
    """What this replica calls itself to clients: its pod, else its host."""
    return environment.get("POD_NAME") or platform.node() or "replica"
