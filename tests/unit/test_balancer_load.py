"""When each replica is asked how loaded it is."""

from itertools import pairwise

import pytest

from fastgen_balancer.load import phase


@pytest.mark.parametrize("number", [2, 8, 100, 1000])
@pytest.mark.parametrize("begun", [0, 57, 4001])
def test_however_many_replicas_there_are_they_are_not_asked_all_at_once(
    number: int, begun: int
) -> None:
    phases = sorted(phase(begun + each) for each in range(number))
    gaps = [later - sooner for sooner, later in pairwise([*phases, phases[0] + 1])]
    assert min(gaps) > 0.35 / number
    assert max(gaps) < 2 / number
