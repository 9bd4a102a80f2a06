"""Which headers of a gRPC call pass the door, and which are taken away."""

import re

import pytest

from fastgen_balancer.envoy_grpc import FAULTS, UNREAD_METADATA, doors
from fastgen_balancer.envoy_routes import Reach, routes

CALL = {":method": "POST", "te": "trailers"}


def told(headers: dict[str, str]) -> list[str]:
    """Names of the headers that are at fault, as Envoy would match them."""
    return [
        fault.header
        for fault in FAULTS
        if (fault.header in headers or fault.needed)
        and not re.fullmatch(fault.pattern, headers.get(fault.header, ""))
    ]


@pytest.mark.parametrize("timeout", ["1S", "99999999H", "0n", "12345678u", "5m", "5M"])
@pytest.mark.parametrize("encoding", ["identity", "gzip", "deflate"])
def test_what_the_specification_allows_passes(timeout: str, encoding: str) -> None:
    assert told(CALL) == []
    assert told(CALL | {"grpc-timeout": timeout, "grpc-encoding": encoding}) == []


@pytest.mark.parametrize(
    ("headers", "named"),
    [
        ({"te": ""}, "te"),
        ({"te": "trailers,gzip"}, "te"),
        ({":method": "GET"}, ":method"),
        ({"grpc-timeout": ""}, "grpc-timeout"),
        ({"grpc-timeout": "1S,2S"}, "grpc-timeout"),
        ({"grpc-timeout": "123456789S"}, "grpc-timeout"),
        ({"grpc-timeout": "1s"}, "grpc-timeout"),
        ({"grpc-encoding": "GZIP"}, "grpc-encoding"),
    ],
)
def test_what_it_does_not_is_named(headers: dict[str, str], named: str) -> None:
    assert told(CALL | headers) == [named]


def test_the_doors_come_before_any_route_to_replicas() -> None:
    made = doors({"prefix": "/", "grpc": {}})
    (host,) = routes(Reach(("a",), "a", ()), 9)["virtual_hosts"]
    assert host["routes"][: len(made)] == made
    for fault, door in zip(FAULTS, made, strict=True):
        assert fault.header in door["direct_response"]["body"]["inline_string"]


@pytest.mark.parametrize(
    ("name", "removed"),
    [
        ("x-foo-bin", True),
        ("x!foo", True),
        ("x~", True),
        ("grpc-status", True),
        ("grpc-timeout", False),
        ("grpc-encoding", False),
        ("traceparent", False),
        ("x-request-id", False),
        ("binary", False),
        (":path", False),
    ],
)
def test_what_is_taken_away(name: str, removed: bool) -> None:
    assert any(_fits(matcher, name) for matcher in UNREAD_METADATA) is removed


def _fits(matcher: dict[str, object], name: str) -> bool:
    match matcher:
        case {"suffix": str(suffix)}:
            return name.endswith(suffix)
        case {"exact": str(exact)}:
            return name == exact
        case {"safe_regex": {"regex": str(pattern)}}:
            return re.fullmatch(pattern, name) is not None
    raise AssertionError(matcher)
