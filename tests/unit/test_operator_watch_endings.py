"""How a watch ends and begins again: what an error means, pauses, lines, paths."""

from collections.abc import AsyncIterator

import httpx2
import pytest

from fastgen_operator import watch as watch_module
from fastgen_operator.cluster_error import ClusterError
from fastgen_operator.kinds import path_of
from fastgen_operator.watch import Ending, ending_of, lines, pause_seconds


def failure(code: int, cause: Exception | None = None) -> ClusterError:
    error = ClusterError(code, "no")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "ending"),
    [
        (failure(0, httpx2.ReadTimeout("")), Ending.SILENT),
        (failure(0, TimeoutError()), Ending.SILENT),
        (failure(0, httpx2.ConnectError("")), Ending.BROKEN),
        (failure(429), Ending.FAILED),
        (failure(503), Ending.FAILED),
        (failure(404), Ending.ABSENT),
        (failure(403), Ending.REFUSED),
        (failure(401), Ending.REFUSED),
        (failure(410), Ending.EXPIRED),
        (failure(400), Ending.EXPIRED),
    ],
)
def test_endings(error: ClusterError, ending: Ending) -> None:
    assert ending_of(error) is ending


def test_pauses_grow_to_a_cap_and_never_are_shorter_than_half() -> None:
    first = watch_module.FIRST_PAUSE_SECONDS
    assert pause_seconds(1, 1.0) == first
    assert pause_seconds(2, 0.0) == first
    assert pause_seconds(99, 1.0) == watch_module.LONGEST_PAUSE_SECONDS
    assert pause_seconds(99, 0.0) == watch_module.LONGEST_PAUSE_SECONDS / 2


def test_paths() -> None:
    assert path_of("Pod", "*") == "/api/v1/pods"
    assert path_of("Deployment", "team") == "/apis/apps/v1/namespaces/team/deployments"


async def test_lines_are_put_together_from_any_pieces() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for piece in (b"a", b"b\n", b"c\nd", b"\n\n", b"half"):
            yield piece

    assert [line async for line in lines(pieces())] == [b"ab", b"c", b"d", b""]
