"""Settings of a runner, for the processes that make one."""

from dataclasses import dataclass
from enum import StrEnum

from fastgen_api.names import StartupFailure
from fastgen_api.spec import DType, Quantization
from fastgen_runtime.startup_error import StartupError


class CpuStepUse(StrEnum):
    """Whether a CPU computes the whole step as one op: where it can, or never."""

    AUTO = "Auto"
    OFF = "Off"


@dataclass(frozen=True, slots=True)
class RunnerConfig:
    """num_blocks: when None, the cache takes what `memory_percent` of the memory leaves it.

    max_model_length: tokens of the longest request; None: what the model was trained for.
    max_step_tokens: most tokens of a step; where memory is short it may be lowered, to
    least_step_tokens at least; None: not at all. threads: None: what the CPU quota allows.
    vocabulary: how many token ids the tokenizer has; the embedding's rows from there on are
    padding, and no request gets them. None: there is no padding. tensor_parallel_size: ranks that
    the model is split among. cpu_step: off here, so that who makes a runner by hand need not wait
    for a compiler; on in replicas and scripts.
    """

    dtype: DType = DType.AUTO
    quantization: Quantization = Quantization.AUTO
    block_size: int = 64
    max_model_length: int | None = None
    max_concurrent_requests: int = 256
    max_step_tokens: int = 2048
    least_step_tokens: int | None = None
    memory_percent: int = 90
    num_blocks: int | None = None
    threads: int | None = None
    vocabulary: int | None = None
    tensor_parallel_size: int = 1
    cpu_step: CpuStepUse = CpuStepUse.OFF

    def __post_init__(self) -> None:
        allowed = {
            "block_size": range(1, 1025),
            "max_concurrent_requests": range(1, 1 << 20),
            "max_step_tokens": range(1, 1 << 20),
            "memory_percent": range(1, 101),
            "tensor_parallel_size": range(1, 1025),
        }
        for name, values in allowed.items():
            if getattr(self, name) not in values:
                raise StartupError(
                    StartupFailure.CONFIG_INVALID,
                    f"{name} is {getattr(self, name)}: "
                    f"it must be between {values[0]} and {values[-1]}",
                )
