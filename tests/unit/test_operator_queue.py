"""The work queue: each key once, one at a time, again later after a failure."""

from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fastgen_operator.queue import LAST_RETRY_SECONDS, Key, WorkQueue

A: Key = ("team", "a")
B: Key = ("team", "b")


def test_a_key_asked_for_twice_is_handed_out_once_and_at_the_earlier_time() -> None:
    queue = WorkQueue()
    queue.add(A, at=5)
    queue.add(A, at=2)
    queue.add(A, at=9)
    assert queue.take(now=1) is None
    assert queue.seconds_to_next(now=1) == 1
    assert queue.take(now=2) == A
    assert queue.take(now=10) is None
    queue.done(A)
    assert len(queue) == 0


def test_what_is_asked_for_during_the_work_comes_after_it() -> None:
    queue = WorkQueue()
    queue.add(A, at=0)
    assert queue.take(now=0) == A
    queue.add(A, at=1)
    assert queue.take(now=5) is None
    queue.done(A)
    assert queue.take(now=5) == A


def test_the_longest_due_key_comes_first() -> None:
    queue = WorkQueue()
    queue.add(A, at=2)
    queue.add(B, at=1)
    assert [queue.take(now=3), queue.take(now=3)] == [B, A]


@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("0123456789")), unique=True),
    st.integers(0, 40),
)
def test_namespaces_take_turns(keys: list[Key], busy: int) -> None:
    """A key waits for at most one key of each other namespace per key before it in its own."""
    queue = WorkQueue()
    for number in range(busy):
        queue.add(("busy", str(number)), at=0)
    for at, key in enumerate(keys, start=1):
        queue.add(key, at)
    order = [queue.take(now=100) for _ in range(len(keys) + busy)]
    assert queue.take(now=100) is None
    namespaces = 1 + len({namespace for namespace, _ in keys})
    for key in keys:
        before = [each for each in keys[: keys.index(key)] if each[0] == key[0]]
        assert order.index(key) < namespaces * (len(before) + 1)
    assert set(order) == {*keys, *(("busy", str(number)) for number in range(busy))}


def test_a_namespace_that_comes_later_waits_for_one_key_of_a_busy_one() -> None:
    queue = WorkQueue()
    for number in range(50):
        queue.add(("busy", str(number)), at=0)
    assert queue.take(now=0) == ("busy", "0")
    queue.add(A, at=1)
    assert A in (queue.take(now=1), queue.take(now=1))


def test_what_is_ready_is_asked_for_again_in_vain() -> None:
    queue = WorkQueue()
    queue.add(A, at=1)
    assert queue.seconds_to_next(now=2) == 0
    queue.add(A, at=0)
    assert queue.take(now=2) == A
    queue.done(A)
    assert queue.take(now=2) is None


def test_a_rejection_waits_longer_whatever_the_jitter() -> None:
    for jitter in (0.0, 0.5, 1.0):
        queue = WorkQueue(lambda jitter=jitter: jitter)
        queue.add(A, at=0)
        assert queue.take(now=0) == A
        assert 30 <= queue.failed(A, 0, at_least_seconds=30.0) <= 60
        queue.forgive(A)
        queue.add(A, at=1)
        assert queue.take(now=1) == A


def test_failures_wait_twice_as_long_each_time_up_to_a_cap_and_success_forgets_them() -> None:
    queue = WorkQueue()
    queue.add(A, at=0)
    now, delays = 0.0, []
    for _ in range(10):
        assert queue.take(now) == A
        delays.append(queue.failed(A, now))
        assert queue.take(now + delays[-1] * 0.9) is None
        now += delays[-1]
    assert delays[:4] == [0.5, 1.0, 2.0, 4.0]
    assert delays[-1] == LAST_RETRY_SECONDS
    assert queue.take(now) == A
    queue.done(A)
    queue.add(A, now)
    assert queue.take(now) == A
    assert queue.failed(A, now) == 0.5


def test_asking_for_a_failed_key_does_not_shorten_its_wait() -> None:
    queue = WorkQueue()
    queue.add(A, at=0)
    assert queue.take(now=0) == A
    delay = queue.failed(A, now=0)
    queue.add(A, at=0.1)
    assert queue.take(now=delay * 0.9) is None
    assert queue.take(now=delay) == A
    queue.add(A, at=delay)
    later = delay + queue.failed(A, now=delay)
    queue.add(A, at=delay)
    assert queue.seconds_to_next(now=delay) == later - delay


def test_a_forgiven_key_is_due_when_it_is_asked_for_and_starts_anew() -> None:
    queue = WorkQueue()
    queue.add(A, at=0)
    for _ in range(8):
        now = queue.seconds_to_next(0) or 0.0
        assert queue.take(now) == A
        queue.failed(A, now)
    queue.forgive(A)
    queue.add(A, at=now)
    assert queue.take(now) == A
    assert queue.failed(A, now) == 0.5


class QueueMachine(RuleBasedStateMachine):
    """No key is lost, none is worked on twice at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = WorkQueue()
        self.now = 0.0
        self.taken: set[Key] = set()
        self.owed: set[Key] = set()

    @rule(key=st.sampled_from([A, B]), delay=st.floats(0, 10))
    def add(self, key: Key, delay: float) -> None:
        self.queue.add(key, self.now + delay)
        self.owed.add(key)

    @rule(seconds=st.floats(0, 100))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def take(self) -> None:
        key = self.queue.take(self.now)
        if key is not None:
            assert key in self.owed
            assert key not in self.taken
            self.taken.add(key)
            self.owed.discard(key)

    @precondition(lambda self: self.taken)
    @rule(fails=st.booleans())
    def finish(self, fails: bool) -> None:
        key = min(self.taken)
        self.taken.discard(key)
        if fails:
            self.queue.failed(key, self.now)
            self.owed.add(key)
        else:
            self.queue.done(key)

    @invariant()
    def nothing_is_lost(self) -> None:
        waiting = self.owed - self.taken
        due = self.queue.seconds_to_next(self.now)
        assert (due is not None) == bool(waiting)
        assert len(self.queue) == len(waiting | self.taken)


QueueMachine.TestCase.settings = hypothesis_settings(max_examples=60, stateful_step_count=30)
TestQueueMachine = QueueMachine.TestCase


def test_what_failed_together_is_tried_again_apart() -> None:
    jitters = iter([0.0, 1.0, 0.5])
    queue = WorkQueue(lambda: next(jitters))
    waits = []
    for name in "abc":
        queue.add(("team", name), at=0)
        assert queue.take(now=0) == ("team", name)
        waits.append(queue.failed(("team", name), now=0))
    assert waits == [0.5, 0.25, 0.375]
