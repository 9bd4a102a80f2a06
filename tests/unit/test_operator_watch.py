"""Watches against an HTTP server that answers as the API server does on its worse days."""

import asyncio
from collections.abc import Awaitable, Iterator
from typing import Any

import pytest
from aiohttp import web
from waiting import wait_until
from watched_api_server import (
    KEY,
    ApiServer,
    Serve,
    following,
    holds,
    item,
    refuses,
    tells,
)

from fastgen_api import names
from fastgen_operator import watch as watch_module
from fastgen_operator.connection import ATTEMPTS
from fastgen_operator.health import WATCH_LIMIT_SECONDS
from fastgen_operator.observed import Problem
from fastgen_operator.spec_reading import read_spec
from fastgen_operator.watch import Ending

LEVELS = 900


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(watch_module, "FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(watch_module, "ABSENT_PAUSE_SECONDS", 0.02)
    return


async def test_a_list_and_then_events_from_there() -> None:
    server = ApiServer(
        [holds(5, item(3))],
        [tells(("MODIFIED", item(6)), ("ADDED", item(7, "b")), ("DELETED", item(8, "b")))],
    )
    async with following(server) as followed:
        await wait_until("the events", lambda: followed.watch.shelf.version == 8)
        assert followed.known() == ["chat-slo@6"]
        assert set(followed.asked) == {KEY}
    listed, watched = server.asked
    assert listed["labelSelector"] == watched["labelSelector"]
    assert "managed-by" in watched["labelSelector"]
    assert watched["allowWatchBookmarks"] == "true"


async def test_a_stream_that_ends_goes_on_from_its_last_bookmark(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watch_module, "STEADY_SECONDS", 0.0)
    bookmark = {"kind": "ConfigMap", "metadata": {"resourceVersion": "42"}}
    server = ApiServer([holds(5)], [tells(("BOOKMARK", bookmark), then=0), tells()])
    async with following(server) as followed:
        await wait_until("two watches", lambda: server.watched_from() == ["5", "42"])
        assert followed.ends == [Ending.EXPECTED]
    assert server.listed() == 1


@pytest.mark.parametrize("cut", [True, False], ids=["broken", "ended at once"])
async def test_a_broken_stream_goes_on_too(cut: bool) -> None:
    server = ApiServer(
        [holds(5)], [tells(("ADDED", item(6)), then=0, cut=cut), tells(("MODIFIED", item(7)))]
    )
    async with following(server) as followed:
        await wait_until("the second watch", lambda: followed.watch.shelf.version == 7)
        assert followed.ends == [Ending.BROKEN]
    assert server.watched_from() == ["5", "6"]
    assert server.listed() == 1


async def test_a_silent_stream_is_given_up() -> None:
    """As after a firewall dropped the connection without a word."""
    server = ApiServer([holds(5)], [tells(), tells(("ADDED", item(6)))])
    async with following(server, silence=0.2) as followed:
        await wait_until("the second watch", lambda: followed.watch.shelf.version == 6)
        assert followed.ends[0] is Ending.SILENT


async def test_a_watch_that_does_not_begin_is_given_up_sooner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watch_module, "OPEN_SECONDS", 0.2)

    async def never(_: web.Request) -> web.StreamResponse:
        await asyncio.sleep(60)
        return web.Response()

    server = ApiServer([holds(5)], [never, tells(("ADDED", item(6)))])
    async with following(server) as followed:
        await wait_until("the second watch", lambda: followed.watch.shelf.version == 6)
        assert followed.ends == [Ending.SILENT]


def expired(request: web.Request) -> Awaitable[web.StreamResponse]:
    status = {"kind": "Status", "code": 410, "message": "too old resource version"}
    return tells(("ERROR", status))(request)


@pytest.mark.parametrize("first", [expired, refuses(410), refuses(400)],
                         ids=["told in the stream", "refused", "never heard of it"])  # fmt: skip
async def test_a_version_that_is_too_old_means_a_new_list(first: Serve) -> None:
    server = ApiServer([holds(5, item(3)), holds(90, item(80, "b"))], [first, tells()])
    async with following(server) as followed:
        await wait_until("the second list", lambda: server.watched_from() == ["5", "90"])
        assert followed.known() == ["b@80"]
        assert followed.ends == [Ending.EXPIRED]


async def test_failures_in_a_row_mean_a_new_list() -> None:
    """An API server that has lost its latest versions says 504 for ever."""
    server = ApiServer([holds(50, item(40)), holds(7, item(6))], [refuses(504)])
    async with following(server) as followed:
        await wait_until("the older history", lambda: followed.known() == ["chat-slo@6"])


async def test_a_list_that_fails_is_tried_again_and_nothing_is_taken_for_gone() -> None:
    server = ApiServer(
        [
            holds(5, item(3)),
            *[refuses(500)] * ATTEMPTS,
            *[refuses(503)] * ATTEMPTS,
            holds(9, item(3)),
        ],
        [expired, tells()],
    )
    async with following(server) as followed:
        await wait_until("a second list", lambda: server.watched_from() == ["5", "9"])
        assert followed.ends == [Ending.EXPIRED, Ending.FAILED, Ending.FAILED]
        assert followed.asked == [KEY]


async def test_a_line_that_is_no_json_means_a_new_list() -> None:
    async def garbage(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"<html>\n")
        return response

    server = ApiServer([holds(5), holds(6, item(6))], [garbage, tells()])
    async with following(server) as followed:
        await wait_until("the second list", lambda: followed.watch.shelf.version == 6)


async def test_text_may_hold_what_python_takes_for_line_ends() -> None:
    odd = item(6) | {"data": {"log": "one\x85two\u2028three"}}
    server = ApiServer([holds(5)], [tells(("ADDED", odd))])
    async with following(server) as followed:
        await wait_until("the event", lambda: followed.watch.shelf.version == 6)
        (found,) = followed.store.observe(KEY).children.values()
        assert found["data"]["log"] == "one\x85two\u2028three"
        assert followed.ends == []


def deeper(version: int, name: str) -> dict[str, Any]:
    """A FastGenDeployment that is nested deeper than any decoder goes."""
    affinity: dict[str, Any] = {}
    for _ in range(LEVELS):
        affinity = {"a": affinity}
    spec = {"model": {"source": "file:///m.gguf"}, "affinity": {"nodeAffinity": affinity}}
    return item(version, name) | {"kind": names.KIND, "spec": spec}


async def test_what_is_nested_too_deeply_hides_nothing_and_is_known_as_such() -> None:
    server = ApiServer(
        [holds(5, deeper(1, "deep"), item(2, "fine"))],
        [tells(("MODIFIED", deeper(6, "deep")), ("ADDED", item(7, "other")),
               ("ADDED", deeper(8, "gone")), ("DELETED", deeper(9, "gone")))],
    )  # fmt: skip
    async with following(server, names.KIND) as followed:
        await wait_until("the events", lambda: followed.watch.shelf.version == 9)
        assert set(followed.watch.shelf.versions().values()) == {6, 2, 7}
        assert followed.ends == []
        found = followed.store.resource(("team", "deep"))
        assert found is not None
        problem = read_spec(found["spec"])
        assert isinstance(problem, Problem)
        assert "nested deeper" in problem.message
    assert server.listed() == 1


async def test_an_odd_object_is_skipped_alone() -> None:
    odd: dict[str, Any] = {"kind": "ConfigMap", "metadata": {"name": "odd"}}
    server = ApiServer(
        [holds(5, odd, item(2, "fine"))], [tells(("ADDED", odd), ("ADDED", item(7, "other")))]
    )
    async with following(server) as followed:
        await wait_until("the event", lambda: followed.watch.shelf.version == 7)
        assert followed.known() == ["fine@2", "other@7"]
        assert followed.ends == []
    assert server.listed() == 1


async def test_an_optional_kind_comes_and_goes() -> None:
    server = ApiServer([refuses(404), refuses(404), holds(5), refuses(404), holds(9)],
                       [tells(("ADDED", item(6)), then=0.05), refuses(404), tells()])  # fmt: skip
    async with following(server, "PodMonitor") as followed:
        await wait_until("gone and back", lambda: followed.served == [False, True, False, True])
        assert followed.watch.is_settled
        assert not followed.known()
        assert followed.store.observe(KEY).served == {"PodMonitor"}
    assert followed.asked == [KEY, KEY], "what it had is news when it goes, too"


async def test_a_right_that_is_missing_is_told_and_may_come() -> None:
    server = ApiServer([refuses(403), refuses(403), holds(5, item(3))], [tells()])
    async with following(server) as followed:
        await wait_until("the refusal", lambda: bool(followed.watch.refusal))
        assert followed.watch.is_settled
        assert not followed.watch.shelf.is_filled
        await wait_until("the list", lambda: followed.watch.shelf.is_filled)
        assert followed.watch.refusal == ""


async def test_a_missing_right_to_an_optional_kind_is_as_if_it_were_not_there() -> None:
    server = ApiServer([refuses(403)], [tells()])
    async with following(server, "PrometheusRule") as followed:
        await wait_until("the refusal", lambda: followed.served == [False])
        assert followed.watch.refusal == ""


async def test_a_watch_that_hears_nothing_complains() -> None:
    server = ApiServer([holds(5)], [tells()])
    async with following(server) as followed:
        await wait_until("the watch", lambda: len(server.asked) == 2)
        heard = followed.watch.heard
        assert followed.watch.complaint(heard + WATCH_LIMIT_SECONDS - 1) == ""
        assert "watch of ConfigMap" in followed.watch.complaint(heard + WATCH_LIMIT_SECONDS + 1)


async def test_a_long_list_comes_in_pages() -> None:
    async def first(_: web.Request) -> web.StreamResponse:
        metadata = {"resourceVersion": "5", "continue": "more"}
        return web.json_response({"metadata": metadata, "items": [item(1, "a")]})

    server = ApiServer([first, holds(5, item(2, "b"))], [tells()])
    async with following(server) as followed:
        await wait_until("both pages", lambda: followed.watch.shelf.is_filled)
        assert followed.known() == ["a@1", "b@2"]
    assert [each.get("continue") for each in server.asked[:2]] == [None, "more"]
    assert all(each["limit"] == "200" for each in server.asked[:2])
