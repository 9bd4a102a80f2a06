"""One engine in the modes in which continuous batching grew up: those of `modes.py`."""

from dataclasses import dataclass, replace
from typing import Any, Final
from unittest.mock import patch

from fastgen_api.spec import BudgetMode
from fastgen_runtime.engine.engine import Beat, Engine, StepRunner
from fastgen_runtime.engine.plan import Limits, Plan, schedule

MOST_TOKENS: Final = 8192


@dataclass(frozen=True, slots=True)
class Mode:
    """budget: tokens of a step. is_prefill_first: whether answers stand still beside prompts."""

    name: str
    mode: BudgetMode
    budget: int
    is_prefill_first: bool = False


MODES: Final = (
    Mode("whole prompts", BudgetMode.FIXED, MOST_TOKENS),
    Mode("prefill first", BudgetMode.FIXED, MOST_TOKENS, is_prefill_first=True),
    Mode("Fixed", BudgetMode.FIXED, 512),
    Mode("Auto", BudgetMode.AUTO, 2048),
)


def prompts_alone(plan: Plan) -> Plan:
    """The plan without answers under way, if it holds any of a prompt."""
    admitted = {admission.request for admission in plan.admitted}
    prompts = tuple(
        (request, piece)
        for request, piece in plan.pieces
        if request in admitted or request.num_owed > 1
    )
    return replace(plan, pieces=prompts) if prompts else plan


def _schedule_prefill_first(*given: Any, **named: Any) -> Plan:
    return prompts_alone(schedule(*given, **named))


class PrefillFirstEngine(Engine):
    """Computes prompts alone while there are any. The product has no such mode: it is worse."""

    def step(self) -> Beat:
        with patch("fastgen_runtime.engine.scheduler.schedule", _schedule_prefill_first):
            return super().step()


def make_engine(mode: Mode, runner: StepRunner, most_requests: int) -> Engine:
    """A fresh engine in this mode, on a runner that all modes may share."""
    limits = Limits(
        budget_tokens=mode.budget,
        budget_mode=mode.mode,
        max_running=most_requests,
        max_waiting=4096,
        max_length=MOST_TOKENS,
        prefix_caching=False,
    )
    return PrefillFirstEngine(runner, limits) if mode.is_prefill_first else Engine(runner, limits)
