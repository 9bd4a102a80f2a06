"""How much a step may hold, so that running streams keep their pace."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

from fastgen_api.spec import BudgetMode, most_step_tokens
from fastgen_runtime.engine.latency import StepCost
from fastgen_runtime.engine.request import Request

AIM: Final = 0.95
"""Share of a target that steps are chosen for: what comes after a step takes its part, too."""
_CATCH_UP: Final = 0.5
"""Share of its pace in which a late stream gets its next token: so it catches up, and the prompts
of others, who are not late yet, still get on."""
_LONGEST_STEP: Final = 2.0
"""Without a target for single gaps, steps take no more than so many paces: what streams have saved
up is spent over several steps, not in one freeze."""
_WORTHWHILE: Final = 20.0
"""While nobody waits for the step's end it still takes no more than so many times its fixed part:
growing further would save a twentieth at most, and whoever comes meanwhile waits."""
_USUAL_TOKENS: Final = most_step_tokens(BudgetMode.FIXED, None)
_USUAL_SECONDS_PER_PROMPT_TOKEN: Final = 1 / 512
_UNKNOWN: Final = StepCost(0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast running streams must stay; None: as fast as may be.

    seconds_per_token: of a stream's tokens after the first, on average. longest_gap_seconds:
    between any two of them. first_token_seconds, seconds_per_prompt_token: from a request's arrival
    to its first token, for any prompt and for each of its tokens more.
    """

    seconds_per_token: float | None = None
    longest_gap_seconds: float | None = None
    first_token_seconds: float = 0.0
    seconds_per_prompt_token: float = 0.0

    def due(self, arrived: float, num_prompt_tokens: int) -> float:
        """When a request should have its first token; only the order of requests rests on it.

        Where the target does not grow with the prompt, FastGen's measure of a prompt's own share
        does: 512 tokens a second (arXiv 2401.08671, section 4).
        """
        per_token = self.seconds_per_prompt_token or _USUAL_SECONDS_PER_PROMPT_TOKEN
        return arrived + self.first_token_seconds + per_token * num_prompt_tokens

    def late_at(self, arrived: float, num_prompt_tokens: int) -> float:
        """From when on a request's first token misses its target; infinity without one."""
        if not (self.first_token_seconds or self.seconds_per_prompt_token):
            return inf
        return self.due(arrived, num_prompt_tokens)


@dataclass(frozen=True, slots=True)
class Budget:
    """What one step may hold.

    tokens: at most. seconds: how long it may take by `cost`; None: as long as it takes.
    least_prompt_tokens: so many of prompts it may hold however long they take. Each request that
    owes one token gets it, whatever the time.
    """

    tokens: int
    seconds: float | None = None
    cost: StepCost = _UNKNOWN
    least_prompt_tokens: int = 0


def choose_budget(
    most_tokens: int,
    block_size: int,
    running: Sequence[Request],
    pace: Pace,
    cost: StepCost | None,
    now: float,
) -> Budget:
    """The largest step that keeps every running stream inside its targets.

    A block's worth of prompts is always in it; while steps' cost is unknown, no more. Streams
    without a target get SplitFuse's constant. Without streams prompts get at least that, and up to
    `most_tokens` as long as larger steps save time.
    """
    seconds = allowed_seconds(running, pace, now)
    if seconds is None:
        usual = min(most_tokens, max(_USUAL_TOKENS, len(running)))
        if cost is None or any(_is_stream(request) for request in running):
            return Budget(usual)
        return Budget(most_tokens, _WORTHWHILE * cost.base, cost, usual)
    if cost is None:
        return Budget(most_tokens, 0.0, _UNKNOWN, block_size)
    return Budget(most_tokens, seconds / cost.caution, cost, block_size)


def allowed_seconds(running: Iterable[Request], pace: Pace, now: float) -> float | None:
    """How long the next step may take; None when no stream runs or none has a target.

    A stream's token number k (from 0) is due k paces after its first one, so tokens that came
    early give later ones more time (QoServe, arXiv 2503.22562). One that is so late that it misses
    its target whatever it gets (`_is_lost`) holds up nobody's prompts any more. Requests that
    compute their tokens again after a preemption are no streams until they have: they need large
    steps.
    """
    target, gap = _aim(pace.seconds_per_token), _aim(pace.longest_gap_seconds)
    if target is None and gap is None:
        return None
    is_any = False
    seconds = float("inf") if target is None else _LONGEST_STEP * target
    if gap is not None:
        seconds = gap
    for request in running:
        first = request.first_token_at
        if first is None or not _is_stream(request):
            continue
        is_any = True
        if target is not None:
            slack = first + request.num_output_tokens * target - now
            if slack >= 0:
                seconds = min(seconds, slack)
            elif not _is_lost(request, slack, target):
                seconds = min(seconds, _CATCH_UP * target)
    return seconds if is_any else None


def _aim(target: float | None) -> float | None:
    return None if target is None else AIM * target


def _is_lost(request: Request, slack: float, target: float) -> bool:
    """Whether a late stream's last token would be late even if all came at the catch-up pace.

    Its last token is due `left - 1` paces after the next one, whose slack is given (below 0).
    """
    left = request.new.max_tokens - request.num_output_tokens
    return slack + (left - 1) * target < left * _CATCH_UP * target


def _is_stream(request: Request) -> bool:
    """Whether somebody waits for its next token, and it owes no more than that."""
    return request.first_token_at is not None and request.num_owed == 1
