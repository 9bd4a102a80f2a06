"""The scheduler keeps its promises for any pool, budget, lengths, prefixes, groups and aborts."""

from collections import Counter
from dataclasses import dataclass, field, replace
from math import inf

from hypothesis import given, settings
from hypothesis import strategies as st
from toy_model import (
    EOS,
    VOCABULARY,
    Choose,
    ToyCache,
    alone,
    next_token,
    prompt_logprobs_alone,
    repeating_token,
)

from fastgen_api.spec import Speculation
from fastgen_runtime.engine.blocks import BlockPool
from fastgen_runtime.engine.budget import Pace, choose_budget
from fastgen_runtime.engine.latency import StepCost
from fastgen_runtime.engine.plan import Limits
from fastgen_runtime.engine.request import FinishReason, NewRequest, NewToken, RefusalKind, Request
from fastgen_runtime.engine.scheduler import Scheduler
from fastgen_runtime.engine.step import Sampling

COST = StepCost(base=0.1, per_token=0.01, per_attended=0.0001, per_request=0.01, caution=1.1)
BASES = [[(i * k + k) % VOCABULARY for i in range(40)] for k in (3, 5, 11)]
"""What prompts begin with: so do several of them, and not always by whole blocks."""


@st.composite
def prompts(draw: st.DrawFn) -> list[int]:
    begin = BASES[draw(st.integers(0, 2))][: draw(st.integers(0, 40))]
    tail = draw(st.lists(st.integers(1, VOCABULARY - 1), max_size=4))
    return [*begin, *tail] or [1]


@st.composite
def requests(draw: st.DrawFn, number: int) -> list[NewRequest]:
    """One request, or the choices of one."""
    new = NewRequest(
        f"r{number}",
        draw(prompts()),
        draw(st.integers(1, 30)),
        Sampling(),
        ignore_eos=draw(st.booleans()),
        min_tokens=draw(st.sampled_from([0, 0, 3])),
        stop_token_ids=draw(st.sampled_from([(), (4, 5, 6)])),
        priority=draw(st.sampled_from([0, 0, 0, -1, 2])),
        deadline=draw(st.sampled_from([None, None, None, 5.0, 20.0])),
        num_prompt_logprobs=draw(st.sampled_from([None, None, 0])),
    )
    if not draw(st.booleans()):
        return [new]
    return [replace(new, request_id=f"r{number}-{i}", group=f"g{number}") for i in range(3)]


@dataclass
class Situation:
    pool: BlockPool
    limits: Limits
    arriving: list[list[NewRequest]]
    aborted: set[int]
    pace: Pace
    scheduler: Scheduler = field(init=False)
    taken: dict[str, NewRequest] = field(default_factory=dict)
    got: dict[str, list[NewToken]] = field(default_factory=dict)
    ended_early: set[str] = field(default_factory=set)
    num_computed: int = 0
    num_cached: int = 0

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(self.pool, self.limits, [EOS])

    @property
    def choose(self) -> Choose:
        return next_token if self.limits.speculation is Speculation.NONE else repeating_token

    def add(self, new: NewRequest) -> None:
        # Long prompts are due later, and some of them before the short ones that came first.
        due = len(self.taken) + 3.0 * len(new.prompt_token_ids)
        # Every other one has a target that it may miss.
        late_at = len(self.taken) / 2 if len(self.taken) % 2 else inf
        refusal = self.scheduler.add(new, due=due, late_at=late_at)
        if refusal is None:
            self.taken[new.request_id] = new
            self.got[new.request_id] = []
            return
        most = self.scheduler.max_length
        is_too_long = len(new.prompt_token_ids) + new.max_tokens > most
        assert refusal.kind is (RefusalKind.TOO_LONG if is_too_long else RefusalKind.FULL)

    def advance(self, cache: ToyCache, now: float) -> None:
        """A step, and all that must hold of it whatever happened before."""
        before = list(self.scheduler.running)
        held = {request: bool(request.block_ids) for request in before}
        budget = choose_budget(
            self.limits.budget_tokens, self.pool.block_size, before, self.pace, COST, now
        )
        streams = [request for request in before if request.num_owed == 1]
        scheduled = self.scheduler.schedule(now, budget, COST)
        self.scheduler.check()
        running = self.scheduler.running
        self.ended_early.update(scheduled.expired)
        step = scheduled.step
        assert bool(step.chunks) == bool(running or self.scheduler.waiting)
        assert step.num_tokens <= scheduled.budget_tokens <= self.limits.budget_tokens
        assert len(running) <= self.limits.max_running
        in_step = Counter(chunk.request_id for chunk in step.chunks)
        assert max(in_step.values(), default=1) == 1
        drafted = sum(chunk.num_drafted for chunk in step.chunks)
        if drafted:
            # All are answers, and their rows of logits those that memory was planned for.
            assert step.num_tokens == len(step.chunks) + drafted <= max(9, self.limits.max_running)
        assert all(request.request_id in in_step for request in streams if request in running)
        for chunk in step.chunks:
            deadline = self.taken[chunk.request_id].deadline
            assert deadline is None or deadline > now
        self.check_victims(before, held)
        committed = self.scheduler.commit(step, cache.run(step), now)
        self.scheduler.check()
        self.num_computed += committed.num_prompt_tokens
        self.num_cached += scheduled.num_cached_tokens
        for token in committed.tokens:
            self.got[token.request_id].append(token)

    def check_victims(self, before: list[Request], held: dict[Request, bool]) -> None:
        """Nobody lost its blocks while a less important request kept its own."""
        victims = [request for request in before if request in self.scheduler.waiting]
        least = max((r.priority for r in self.scheduler.running if held.get(r)), default=-100)
        assert all(least <= victim.priority for victim in victims)

    def check_answers(self) -> None:
        for request_id, new in self.taken.items():
            tokens = self.got[request_id]
            expected = alone(new, self.choose)
            ids = [token.token_id for token in tokens]
            assert [token.started is not None for token in tokens[1:]] == [False] * len(tokens[1:])
            if request_id in self.ended_early:
                assert ids == expected[: len(ids)]
            else:
                assert ids == expected
                finishes = [token.finish for token in tokens]
                assert finishes[:-1] == [None] * (len(tokens) - 1)
                ends = {*new.stop_token_ids, *(() if new.ignore_eos else (EOS,))}
                stopped = ids[-1] in ends
                assert finishes[-1] is (FinishReason.STOP if stopped else FinishReason.LENGTH)
            if tokens:
                started = tokens[0].started
                assert started is not None
                assert 0 <= started.cached_tokens < len(new.prompt_token_ids)
                wanted = new.num_prompt_logprobs is not None
                assert list(started.prompt_logprobs) == (prompt_logprobs_alone(new) * wanted)
                assert not (wanted and started.cached_tokens)


@st.composite
def situations(draw: st.DrawFn) -> Situation:
    pool = BlockPool(draw(st.integers(1, 24)), draw(st.integers(1, 6)))
    budget = draw(st.integers(1, 24))
    limits = Limits(
        budget_tokens=budget,
        max_running=draw(st.integers(1, budget)),
        max_waiting=draw(st.integers(0, 30)),
        max_length=draw(st.integers(2, 200)),
        expected_output_tokens=draw(st.sampled_from([1, 4, 1000])),
        prefix_caching=draw(st.booleans()),
        speculation=draw(st.sampled_from(Speculation)),
    )
    count = draw(st.integers(1, 14))
    arriving = [draw(requests(number)) for number in range(count)]
    aborted = draw(st.sets(st.integers(0, 25), max_size=4))
    pace = draw(st.sampled_from([Pace(), Pace(0.5), Pace(None, 0.3), Pace(2.0, 0.5)]))
    return Situation(pool, limits, arriving, aborted, pace)


@settings(max_examples=150)
@given(situations(), st.integers(1, 5))
def test_every_request_gets_its_tokens_whatever_else_happens(
    situation: Situation, per_step: int
) -> None:
    scheduler = situation.scheduler
    cache = ToyCache(situation.pool.block_size, situation.choose)
    to_come = list(situation.arriving)
    total = sum(len(n.prompt_token_ids) + n.max_tokens for news in to_come for n in news)
    for number in range(total**2 + 10):
        arriving, to_come = to_come[:per_step], to_come[per_step:]
        for new in (new for news in arriving for new in news):
            situation.add(new)
        if number in situation.aborted and situation.got:
            victim = sorted(situation.got)[number % len(situation.got)]
            if not (tokens := situation.got[victim]) or tokens[-1].finish is None:
                situation.ended_early.add(victim)
            scheduler.abort(victim)
        scheduler.check()
        if not (scheduler.running or scheduler.waiting or to_come):
            break
        situation.advance(cache, float(number))
    else:
        raise AssertionError("no progress")
    situation.check_answers()
    assert situation.pool.num_free == situation.pool.num_blocks
    if not situation.ended_early:
        prompts = sum(len(new.prompt_token_ids) for new in situation.taken.values())
        assert situation.num_computed + situation.num_cached == prompts
