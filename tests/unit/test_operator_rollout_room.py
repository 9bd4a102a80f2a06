"""What is said of room, what a pod asks for, and strategies in a Deployment's terms."""

from typing import Any

import pytest
from rollout_model import NO_GPU

from fastgen_api.spec import Rollout, RolloutStrategy
from fastgen_operator.rollout_room import Shortage, requests_of, scheduler_words, why_not_in_place
from fastgen_operator.rollout_strategy import rolling_update, unavailable_of


@pytest.mark.parametrize(
    ("rollout", "strategy", "unavailable_of_three"),
    [
        (Rollout(), {"maxSurge": 1, "maxUnavailable": 0}, 0),
        (Rollout(max_surge="50%", max_unavailable="34%"),
         {"maxSurge": "50%", "maxUnavailable": "34%"}, 1),
        (Rollout(strategy=RolloutStrategy.IN_PLACE), {"maxSurge": 0, "maxUnavailable": 1}, 1),
        (Rollout(strategy=RolloutStrategy.IN_PLACE, max_unavailable="0%"),
         {"maxSurge": 0, "maxUnavailable": 1}, 1),
        (Rollout(strategy=RolloutStrategy.IN_PLACE, max_unavailable="10%"),
         {"maxSurge": 0, "maxUnavailable": "10%"}, 1),
        (Rollout(strategy=RolloutStrategy.IN_PLACE, max_unavailable=2),
         {"maxSurge": 0, "maxUnavailable": 2}, 2),
    ],
)  # fmt: skip
def test_strategies_in_the_terms_of_a_deployment(
    rollout: Rollout, strategy: dict[str, Any], unavailable_of_three: int
) -> None:
    assert rolling_update(rollout) == strategy
    assert unavailable_of(rollout, 3) == unavailable_of_three


def test_the_scheduler_is_quoted_without_its_thoughts_about_preemption() -> None:
    assert scheduler_words(NO_GPU) == "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."


def test_what_a_pod_asks_for_counts_limits_sidecars_and_the_largest_start() -> None:
    spec = {
        "containers": [{"name": "a", "resources": {"limits": {"memory": "2Gi", "cpu": "2"},
                                                   "requests": {"cpu": "500m"}}},
                       {"name": "b"}],
        "initContainers": [
            {"name": "c", "resources": {"requests": {"memory": "3Gi"}}},
            {"name": "d", "restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}}},
        ],
    }  # fmt: skip
    asked = {name: float(amount) for name, amount in requests_of(spec).items()}
    assert asked == {"memory": 3 * 2**30, "cpu": 1.5}


ZONE = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "db"}}}
COMPANY = {"topologyKey": "host", "labelSelector": {"matchLabels": {"fastgen.dev/claim": "mine"}}}


def near(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}}


@pytest.mark.parametrize(
    ("newcomer", "running", "nodes", "fits"),
    [
        (near(COMPANY), None, "aa", True),
        (near(COMPANY), near(COMPANY), "ab", True),
        (near(ZONE, COMPANY), near(ZONE), "a", True),
        (near(COMPANY), None, "ab", False),
        (near(ZONE, COMPANY), None, "a", False),
        (near(COMPANY), near(ZONE), "a", False),
        ({"nodeAffinity": {"x": 1}} | near(COMPANY), None, "a", False),
    ],
)
def test_replicas_of_one_node_make_room_for_those_that_keep_their_company(
    newcomer: dict[str, Any], running: dict[str, Any] | None, nodes: str, fits: bool
) -> None:
    """As after an upgrade of the operator: those that run do not say that they share a claim."""
    pods = [{"spec": {"nodeName": node, "containers": [], "affinity": running}} for node in nodes]
    found = why_not_in_place({"spec": {"affinity": newcomer}}, pods, Shortage("no room"))
    assert bool(found) != fits
    assert "affinity" in found or fits
