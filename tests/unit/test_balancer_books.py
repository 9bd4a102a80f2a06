"""The books of a fleet, whatever happens to it in whatever order."""

import pytest
from balancer_books import Clock, endpoint, fleet_of, report
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fastgen_balancer.account import Sent

NAMES = st.sampled_from(["a", "b", "c"])


class Books(RuleBasedStateMachine):
    """Whatever happens in whatever order, the books agree with themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.fleet = fleet_of(self.clock, "a", "b")
        self.open: list[str] = []
        self.number = 0

    @rule(seconds=st.sampled_from([0.01, 0.3, 1.0, 4.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.now += seconds

    @precondition(lambda self: self.fleet.candidates())
    @rule(index=st.integers(0, 2))
    def send(self, index: int) -> None:
        candidates = self.fleet.candidates()
        self.number += 1
        sent = Sent(f"r{self.number}", 10, self.clock.now)
        self.fleet.send(candidates[index % len(candidates)].name, sent)
        self.open.append(sent.id)

    @precondition(lambda self: self.open)
    @rule(index=st.integers(0, 100))
    def end(self, index: int) -> None:
        self.fleet.end(self.open.pop(index % len(self.open)))

    @precondition(lambda self: self.open)
    @rule(index=st.integers(0, 100), name=NAMES)
    def retry_elsewhere(self, index: int, name: str) -> None:
        self.fleet.move(self.open[index % len(self.open)], name)

    @rule(name=NAMES, running=st.integers(0, 5), owed=st.integers(0, 1000))
    def replica_speaks(self, name: str, running: int, owed: int) -> None:
        self.fleet.hear(name, report(self.clock.now, running=running, owed_tokens=owed))

    @rule(name=NAMES, well=st.booleans())
    def replica_answers(self, name: str, well: bool) -> None:
        self.fleet.answered(name, well=well)

    @rule(name=NAMES, is_gone=st.booleans())
    def replica_is_silent(self, name: str, is_gone: bool) -> None:
        self.fleet.hear_nothing(name, is_gone=is_gone)

    @rule(name=NAMES)
    def replica_drains(self, name: str) -> None:
        self.fleet.hear(name, report(self.clock.now, draining=True))

    @precondition(lambda self: self.open)
    @rule(index=st.integers(0, 100))
    def first_byte_comes(self, index: int) -> None:
        self.fleet.first_byte(self.open[index % len(self.open)])

    @rule(names=st.sets(NAMES), leaving=st.sets(NAMES))
    def endpoints_change(self, names: set[str], leaving: set[str]) -> None:
        self.fleet.set_endpoints([endpoint(name, name in leaving) for name in sorted(names)])

    @rule(capacity=st.integers(1, 9))
    def settings_change(self, capacity: int) -> None:
        self.fleet.default_capacity = capacity

    @rule()
    def sweep(self) -> None:
        self.fleet.forget_lost()
        self.fleet.eject_slow()

    @invariant()
    def what_is_kept_of_endpoints_is_true(self) -> None:
        kept = self.fleet.candidates()
        self.fleet._views.clear()
        assert kept == self.fleet.candidates()

    @invariant()
    def counts_agree(self) -> None:
        assert 0 <= self.fleet.in_flight <= len(self.open)
        for candidate in self.fleet.candidates():
            assert candidate.requests >= 0
            assert candidate.outstanding_tokens >= 0

    def teardown(self) -> None:
        for request_id in self.open:
            self.fleet.end(request_id)
        assert self.fleet.in_flight == 0


TestBooks = pytest.mark.filterwarnings("ignore::pytest.PytestCollectionWarning")(Books.TestCase)
TestBooks.settings = hypothesis_settings(max_examples=60, stateful_step_count=30)
