"""What the load benchmark decides: its conversations, its bars, its rivals' configuration."""

import json
import re
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from load_figures import LESS, MORE, Figure, table
from load_program import SOURCE
from load_rival import decide_alone
from load_turns import (
    CONVERSATIONS_PER_SECOND,
    SYSTEMS,
    WAYS,
    conversations,
    words,
)

from fastgen_balancer.endpoint_files import ENVOY_FILE
from fastgen_balancer.envoy_config import Addresses, bootstrap
from fastgen_balancer.envoy_routes import CLUSTERS_FILE, ROUTES_FILE


def test_the_same_seed_gives_the_same_conversations() -> None:
    one, same, other = (list(conversations(seed, 30)) for seed in (7, 7, 8))
    assert one == same != other
    shorter = list(conversations(7, 15))
    assert one[: len(shorter)] == shorter != []


def test_conversations_share_a_few_system_prompts_and_differ_in_the_rest() -> None:
    found = list(conversations(1, 200))
    assert len(found) == pytest.approx(200 * CONVERSATIONS_PER_SECOND, rel=0.25)
    assert 1 < len({each.system for each in found}) <= SYSTEMS
    firsts = [each.turns[0].user for each in found]
    assert len(set(firsts)) == len(firsts)
    assert all(a.at < b.at for a, b in pairwise(found))
    assert max(len(each.turns) for each in found) > 5
    assert all(turn.max_tokens > 0 and turn.think >= 0 for each in found for turn in each.turns)


def test_a_text_has_the_fakes_tokens_that_it_was_asked_for() -> None:
    found = re.search(r"const bytesPerToken = (\d+)", (SOURCE / "cache.go").read_text())
    assert found is not None
    assert len(words(Random(1), 50)) == 50 * int(found[1])


@pytest.mark.parametrize(("name", "kind"), [("round robin", "RoundRobin"),
                                            ("least request", "LeastRequest")])  # fmt: skip
def test_rivals_are_our_envoy_with_their_policy_and_without_a_picker(
    name: str, kind: str, tmp_path: Path
) -> None:
    (tmp_path / ENVOY_FILE).write_text(json.dumps(bootstrap(Addresses(), str(tmp_path))))
    own = WAYS[name]
    assert own is not None
    decide_alone(tmp_path, ["127.0.0.1:1:2", "127.0.0.1:3:4"], own)
    config = json.loads((tmp_path / ENVOY_FILE).read_bytes())
    listeners = json.dumps(config["static_resources"]["listeners"])
    assert "ext_proc" not in listeners
    assert "http_grpc" not in listeners
    assert "ext_proc" not in (tmp_path / ROUTES_FILE).read_text()
    clusters = json.loads((tmp_path / CLUSTERS_FILE).read_bytes())["resources"]
    assert len(clusters) == 2
    policies = [each["load_balancing_policy"]["policies"] for each in clusters]
    assert all(f".{kind}" in json.dumps(each) and len(each) == 1 for each in policies)


def test_a_bar_is_reached_from_its_own_side() -> None:
    def met(value: float, bar: tuple[str, float] | None) -> bool | None:
        return Figure("s", "n", value, "ms", None, bar).is_met

    assert met(5, None) is None
    assert (met(5, (LESS, 5)), met(5.1, (LESS, 5))) == (True, False)
    assert (met(5, (MORE, 5)), met(4.9, (MORE, 5))) == (True, False)
    assert not met(float("nan"), (LESS, 5))
    assert not met(float("nan"), (MORE, 5))
    text = table([Figure("s", "n", 6, "ms", 1.5, (LESS, 5)), Figure("s", "m", 4, "ms")])
    assert "MISSED" in text
    assert "1.5" in text
