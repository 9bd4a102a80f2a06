"""Whom a balancer serves, and how each of them is set."""

import json
from pathlib import Path
from typing import Any

import pytest

from fastgen_api.names import Header
from fastgen_api.sharing import Declared
from fastgen_api.spec import parse
from fastgen_balancer.cluster import Declarations
from fastgen_balancer.endpoint_files import write_reach
from fastgen_balancer.envoy_routes import Reach, routes
from fastgen_balancer.roster import Entry, roster_of, static_roster
from fastgen_balancer.settings import Settings

MODEL = {"source": "file:///m"}


def declared(deployment: str, created: int = 0, /, **more: Any) -> Declared:
    """`more`: fields of the spec."""
    created_at = f"2026-01-01T00:00:{created:02}Z"
    return Declared(deployment, created_at, parse({"model": MODEL} | more))


def test_each_member_has_settings_of_its_own() -> None:
    all_ = [
        declared("a", 1, balancer={"name": "x", "replicas": 3, "maxQueuedRequests": 30}),
        declared("b", 2, balancer={"name": "x", "maxQueuedRequests": 7, "routing": "LeastTokens"},
                 scaling={"minReplicas": 0}, rollout={"drainSeconds": 9}),
    ]  # fmt: skip
    a, b = roster_of("x", all_, 12.0).entries
    assert (a.deployment, a.settings.max_queued_requests, a.settings.hold_seconds) == ("a", 10, 0)
    # The balancer has as many pods as the member wants that wants most.
    assert b.settings.max_queued_requests == 3
    assert (b.settings.hold_seconds, b.settings.drain_seconds) == (600, 9)
    assert (a.settings.prefers_prefix, b.settings.prefers_prefix) == (True, False)
    assert a.settings.max_wait_seconds == b.settings.max_wait_seconds == 12


def test_a_routes_target_has_its_own_settings_and_is_no_member() -> None:
    route = {"match": {"minPromptTokens": 9}, "deployment": "long"}
    lost = {"match": {"minPromptTokens": 1}, "deployment": "none"}
    chat = declared("chat", balancer={"routes": [lost, route]})
    long = declared("long", engine={"maxConcurrentRequests": 2}, scaling={"minReplicas": 0})
    roster = roster_of("chat", [chat, long])
    assert not roster.is_shared
    assert roster.sole == roster.entries[0]
    assert [way.deployment for way in roster.entries[0].routes] == ["long"]
    target = roster.entry("long")
    assert target is not None
    assert not target.is_member
    assert target.settings.max_concurrent_requests == 2
    assert target.settings.hold_seconds == 600
    assert roster.reach() == Reach(("chat", "long"), "chat", ())


def test_what_envoy_must_know_of_sharers() -> None:
    roster = static_roster(["a", "b", "a"], Settings())
    assert roster.is_shared
    assert roster.reach(("old",)) == Reach(("a", "b", "old"), None, ("a", "b"))
    assert static_roster([""], Settings()).sole == Entry("static", "", Settings())


def _clusters(table: dict[str, Any], headers: dict[str, str], path: str) -> list[str]:
    """Where the first route leads that fits; a stand-in for Envoy's own order of matching."""
    for route in table["virtual_hosts"][0]["routes"]:
        match = route["match"]
        if "grpc" in match or "safe_regex" in match or not path.startswith(match["prefix"]):
            continue
        wanted = {each["name"]: each["string_match"]["exact"] for each in match.get("headers", [])}
        if all(headers.get(name) == value for name, value in wanted.items()):
            return [route["route"]["cluster"]] if "route" in route else []
    raise AssertionError("no route")


@pytest.mark.parametrize(
    ("headers", "shared", "own"),
    [
        ({}, [], ["replicas-http.a"]),
        ({Header.MODEL: "b"}, ["replicas-http.b"], ["replicas-http.a"]),
        ({Header.MODEL: "old"}, [], ["replicas-http.a"]),
        ({Header.DEPLOYMENT: "old"}, ["replicas-http.old"], ["replicas-http.old"]),
        ({Header.DEPLOYMENT: "a", Header.MODEL: "b"}, ["replicas-http.a"], ["replicas-http.a"]),
    ],
)
def test_the_pickers_word_comes_first(
    headers: dict[str, str], shared: list[str], own: list[str]
) -> None:
    of_many = routes(Reach(("a", "b", "old"), None, ("a", "b")), 9)
    assert _clusters(of_many, headers, "/v1/completions") == shared
    of_one = routes(Reach(("a", "old"), "a", ()), 9)
    assert _clusters(of_one, headers, "/v1/completions") == own


def test_a_cluster_goes_after_its_route(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_reach(tmp_path, Reach(("a", "b"), None, ("a", "b")))
    seen: list[set[str]] = []

    def clusters() -> set[str]:
        found = json.loads((tmp_path / "clusters.json").read_bytes())["resources"]
        return {each["name"].partition(".")[2] for each in found}

    from fastgen_balancer import endpoint_files

    real = endpoint_files.write_file

    def note(path: Path, content: bytes, mode: int = 0o644) -> bool:
        if path.name == "routes.json":
            seen.append(clusters())
        return real(path, content, mode)

    monkeypatch.setattr(endpoint_files, "write_file", note)
    write_reach(tmp_path, Reach(("b", "c"), None, ("b", "c")))
    assert seen == [{"a", "b", "c"}]
    assert clusters() == {"b", "c"}


def test_deployments_as_the_api_server_tells_of_them() -> None:
    known = declared("b", balancer={"name": "x"})
    declarations = Declarations((known, declared("gone")))

    def found(generation: int, spec: Any, **meta: Any) -> dict[str, Any]:
        at = {"creationTimestamp": "2026-01-01T00:00:00Z", "generation": generation, "uid": "u"}
        return {"metadata": at | meta, "spec": spec}

    bad = {"model": {"source": 5, "servedName": "m"}, "balancer": {"name": "x"}}
    objects = {"b": found(2, bad), "a": found(1, {"model": MODEL}), "c": found(1, bad)}
    a, b, c = declarations.take(objects)
    assert (a.name, a.spec.model.source) == ("a", "file:///m")
    assert b == known, "what does not read stays as it was"
    assert (c.spec.balancer.name, c.spec.model.served_name) == ("x", "m")
    objects["a"] = found(1, {"model": {"source": "file:///unseen"}}, deletionTimestamp="now")
    objects["b"] = found(3, {"model": MODEL})
    a, b, _ = declarations.take(objects)
    assert a.deleting
    assert b.spec.balancer.name == ""
