"""This engine, in process: scheduler, blocks and runner of a replica, without its front."""

import time
from collections.abc import Iterable
from dataclasses import replace
from enum import EnumType
from importlib.metadata import version
from pathlib import Path
from typing import Any, get_type_hints

from fastgen_api.spec import BudgetMode, DType
from fastgen_runtime.engine import cores
from peers.protocol import Answer, Answerer, Request, Settings, run_stepped, serve

BLOCK_SIZE = 64
MOST_LENGTH = 8192
DTYPES = {"auto": DType.AUTO, "bfloat16": DType.BFLOAT16, "float32": DType.FLOAT32}


class Fastgen:
    """An engine, and the requests' numbers as their names."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def add(self, number: int, request: Request) -> None:
        from fastgen_runtime.engine.request import NewRequest
        from fastgen_runtime.engine.step import Sampling

        new = NewRequest(
            str(number), request.prompt, request.output, Sampling(temperature=0.0),
            ignore_eos=True, arrived=time.monotonic(),
        )  # fmt: skip
        refusal = self._engine.add(new)
        if refusal is not None:
            raise RuntimeError(refusal.message)

    def step(self) -> Iterable[tuple[int, int]]:
        for token in self._engine.step().committed.tokens:
            yield int(token.request_id), token.token_id


def typed(kind: type, given: dict[str, Any]) -> dict[str, Any]:
    """Fields of a dataclass as JSON gives them, with enumerations in the place of their values.

    Raises ValueError for a field that it does not have.
    """
    hints = get_type_hints(kind)
    if unknown := set(given) - set(hints):
        raise ValueError(f"this engine has no setting {', '.join(sorted(unknown))}")
    return {
        name: hints[name](value) if isinstance(hints[name], EnumType) else value
        for name, value in given.items()
    }


def load(settings: Settings) -> tuple[Answerer, dict[str, Any]]:
    """Own settings: budget_mode, budget_tokens, tpot_ms, gap_ms (or none), runner: more of
    RunnerConfig's fields."""
    cores.limit_threads(settings["threads"])
    from fastgen_runtime.device.loading import Loader
    from fastgen_runtime.device.runner import Runner, RunnerConfig
    from fastgen_runtime.engine.budget import Pace
    from fastgen_runtime.engine.engine import Engine
    from fastgen_runtime.engine.plan import Limits
    from fastgen_runtime.engine.runner_config import CpuStepUse
    from fastgen_runtime.models.checkpoint import open_checkpoint

    own = settings.get("runner", {})
    checkpoint = open_checkpoint(Path(settings["model"]))
    budget = settings.get("budget_tokens", 512)
    config = RunnerConfig(
        dtype=DTYPES[settings["dtype"]],
        block_size=BLOCK_SIZE,
        max_model_length=MOST_LENGTH,
        max_concurrent_requests=32,
        max_step_tokens=budget,
        threads=settings["threads"],
        cpu_step=CpuStepUse.AUTO,
    )
    config = replace(config, **typed(RunnerConfig, own))
    if config.num_blocks is None:
        # A block's bytes depend on what Auto chooses for this checkpoint and CPU.
        block = Loader(checkpoint, config).cache(1)
        config = replace(config, num_blocks=settings["kv_bytes"] // block.nbytes)
    limits = Limits(
        budget_tokens=budget,
        max_running=32,
        max_waiting=1024,
        max_length=MOST_LENGTH,
        budget_mode=BudgetMode(settings.get("budget_mode", "Fixed")),
        prefix_caching=False,
    )
    runner = Runner.load(checkpoint, config)
    engine = Engine(runner, limits)
    tpot, gap = settings.get("tpot_ms"), settings.get("gap_ms")
    engine.set_pace(Pace(tpot and tpot / 1e3, gap and gap / 1e3))

    def answer(requests: list[Request]) -> list[Answer]:
        return run_stepped(Fastgen(engine), requests)

    cache = runner.cache
    return answer, {
        "version": version("fastgen"),
        "cache": f"{cache.dtype} {cache.numel() * cache.element_size() >> 20} MiB",
    }


if __name__ == "__main__":
    serve(load)
