"""End to end on the runner: whole steps by the clock, and clients served by ways to fill steps."""

import time
from collections.abc import Iterator

import numpy as np
from gpu_cases import Sizes
from gpu_clients import Server, Slo, serve, serving_figures, wishes
from gpu_figures import MORE, Figure
from gpu_model import Runners, decode_step, prompt_step
from gpu_rivals import RIVALS, Rival

from fastgen_api.spec import BudgetMode
from fastgen_runtime.device.runner import Runner
from fastgen_runtime.engine.budget import Pace
from fastgen_runtime.engine.engine import Engine
from fastgen_runtime.engine.plan import Limits
from fastgen_runtime.engine.request import NewRequest
from fastgen_runtime.engine.step import Step

SPLITFUSE_TOKENS = 2048
WARM_UP_ANSWERS = 2


class SplitFuse:
    """The engine itself, with the budget that keeps the pace."""

    def __init__(self, runner: Runner, sizes: Sizes, slo: Slo) -> None:
        most = max(sizes.clients)
        limits = Limits(
            budget_tokens=max(most, min(SPLITFUSE_TOKENS, sizes.most_step_tokens)),
            budget_mode=BudgetMode.AUTO,
            max_running=most,
            max_waiting=most,
            max_length=sizes.model.length,
            prefix_caching=False,
        )
        self._engine = Engine(runner, limits)
        self._engine.set_pace(Pace(slo.tpot_seconds, first_token_seconds=slo.ttft_seconds))

    def add(self, new: NewRequest) -> None:
        if refusal := self._engine.add(new):
            raise RuntimeError(refusal.message)

    def step(self) -> list[tuple[str, bool]]:
        committed = self._engine.step().committed
        for _, refusal in committed.failed:
            raise RuntimeError(refusal.message)
        return [(token.request_id, token.finish is not None) for token in committed.tokens]


def measure_serving(runner: Runner, sizes: Sizes, slo: Slo, seed: int) -> Iterator[Figure]:
    """Each number of clients by each way, one after the other, with the same requests."""
    servers: dict[str, Server] = {"splitfuse": SplitFuse(runner, sizes, slo)}
    for name, may_join in RIVALS.items():
        servers[name] = Rival(runner, may_join, sizes.most_step_tokens)
    most = max(sizes.clients)
    warm_up = [wishes(seed + 1000 + client, WARM_UP_ANSWERS, sizes) for client in range(most)]
    for server in servers.values():
        serve(server, warm_up[: -(-most // 4)], sizes.model.vocabulary)
    for clients in sizes.clients:
        lists = [wishes(seed + client, sizes.answers, sizes) for client in range(clients)]
        for name, server in servers.items():
            answers, took = serve(server, lists, sizes.model.vocabulary)
            yield from serving_figures(name, clients, answers, took, slo)


def step_figures(
    runners: Runners, sizes: Sizes, copy_rate: float, product_rate: float
) -> Iterator[Figure]:
    """Whole steps by the host's clock, beside the time that weights and keys take to be read, or a
    prompt's products to be computed."""
    shape, runner = sizes.model, runners.graphs
    rows = max(sizes.step_rows)
    step = decode_step(shape, rows, sizes.step_context, sizes.block_size)
    chosen = [[one.token_id for one in each.run(step)] for each in (runner, runners.eager)]
    same = 100 * float(np.mean([one == other for one, other in zip(*chosen, strict=True)]))
    yield Figure(
        "step", f"{rows} decodes", "tokens as without graphs", same, "%", aim=(MORE, 100.0)
    )
    for rows in sizes.step_rows:
        step = decode_step(shape, rows, sizes.step_context, sizes.block_size)
        floor = shape.decode_floor_seconds([sizes.step_context + 1] * rows, copy_rate)
        case = f"{rows} decodes after {sizes.step_context:,}"
        yield from _step_figures(case, runner, step, floor, sizes.rounds)
    for tokens in sizes.step_prompts:
        floor = shape.prompt_floor_seconds(tokens, product_rate)
        step = prompt_step(shape, tokens, sizes.block_size)
        yield from _step_figures(f"prompt of {tokens:,}", runner, step, floor, sizes.rounds)


def _step_figures(
    case: str, runner: Runner, step: Step, floor: float, rounds: int
) -> Iterator[Figure]:
    for _ in range(2):
        runner.run(step)
    times = []
    for _ in range(rounds):
        begun = time.perf_counter()
        if any(result.failed for result in runner.run(step)):
            raise RuntimeError("the random model computed what is no finite number")
        times.append(time.perf_counter() - begun)
    took = float(np.median(times))
    yield Figure("step", case, "time", 1e3 * took, "ms", 1e3 * floor)
    yield Figure("step", case, "over the floor", took / floor, "x", 1.0)
