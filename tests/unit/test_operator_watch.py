"""Watches against an HTTP server that answers as the API server does on its worse days."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx2
import pytest
from aiohttp import web
from lightkube import KubeConfig
from lightkube.config.models import Cluster as KubernetesServer
from lightkube.config.models import User
from waiting import wait_until

from fastgen_api import names
from fastgen_operator import watch as watch_module
from fastgen_operator.cluster import Cluster
from fastgen_operator.cluster_error import ClusterError
from fastgen_operator.connection import ATTEMPTS, Connection, connect
from fastgen_operator.health import WATCH_LIMIT_SECONDS
from fastgen_operator.kinds import path_of
from fastgen_operator.observed import Problem
from fastgen_operator.queue import Key
from fastgen_operator.spec_reading import read_spec
from fastgen_operator.store import Store
from fastgen_operator.watch import Ending, Watch, ending_of, lines, pause_seconds

KEY = ("team", "chat")
LEVELS = 900
Serve = Callable[[web.Request], Awaitable[web.StreamResponse]]


def item(version: int, name: str = "chat-slo") -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": name, "namespace": "team", "resourceVersion": str(version),
            "labels": {names.DEPLOYMENT_LABEL: "chat"},
        },
    }  # fmt: skip


def refusal(code: int, message: str = "no", **headers: str) -> web.Response:
    status = {"kind": "Status", "apiVersion": "v1", "code": code, "message": message}
    return web.json_response(status, status=code, headers=headers)


@dataclass
class ApiServer:
    """Answers each list and each watch by the next function of its script, the last for ever."""

    lists: list[Serve] = field(default_factory=list)
    watches: list[Serve] = field(default_factory=list)
    asked: list[dict[str, str]] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(dict(request.query))
        script = self.watches if request.query.get("watch") else self.lists
        return await (script.pop(0) if len(script) > 1 else script[0])(request)

    def watched_from(self) -> list[str]:
        return [each["resourceVersion"] for each in self.asked if each.get("watch")]

    def listed(self) -> int:
        return sum("watch" not in each for each in self.asked)


def holds(version: int, *items: dict[str, Any]) -> Serve:
    async def serve(_: web.Request) -> web.StreamResponse:
        return web.json_response({"metadata": {"resourceVersion": str(version)}, "items": items})

    return serve


def refuses(code: int) -> Serve:
    async def serve(_: web.Request) -> web.StreamResponse:
        return refusal(code)

    return serve


def tells(*events: tuple[str, dict[str, Any]], then: float = 60.0, cut: bool = False) -> Serve:
    """A stream of events that ends after some seconds, or breaks."""

    async def serve(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for kind, found in events:
            line = json.dumps({"type": kind, "object": found}, ensure_ascii=False).encode() + b"\n"
            # In two pieces, as networks do.
            await response.write(line[:30])
            await response.write(line[30:])
        await asyncio.sleep(then)
        if cut and request.transport:
            request.transport.abort()
        return response

    return serve


@dataclass
class Followed:
    """A running watch of ConfigMaps and what came of it."""

    server: ApiServer
    store: Store
    watch: Watch
    asked: list[Key]
    ends: list[Ending]
    served: list[bool]

    def known(self) -> list[str]:
        children = self.store.observe(KEY).children
        return [f"{name}@{each['metadata']['resourceVersion']}"
                for (_, name), each in children.items()]  # fmt: skip


@contextlib.asynccontextmanager
async def connected(server: ApiServer, silence: float) -> AsyncIterator[Connection]:
    app = web.Application()
    app.router.add_route("*", "/{any:.*}", server.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    config = KubeConfig.from_one(cluster=KubernetesServer(server=url), user=User(token="any")).get()
    connection = connect(lambda *_: None, silence, config)
    yield connection
    await connection.close()
    await runner.cleanup()


@contextlib.asynccontextmanager
async def following(
    server: ApiServer, kind: str = "ConfigMap", silence: float = 5.0
) -> AsyncIterator[Followed]:
    async with connected(server, silence) as connection:
        store = Store()
        shelf = store.shelf(kind, "team")
        assert shelf is not None
        asked: list[Key] = []
        ends: list[Ending] = []
        served: list[bool] = []
        watch = Watch(
            shelf,
            Cluster(connection.requests, lambda: None, store),
            connection.watches,
            ask=asked.append,
            served=lambda: served.append(shelf.is_served),
            ended=lambda _, ending: ends.append(ending),
        )
        task = asyncio.create_task(watch.run())
        yield Followed(server, store, watch, asked, ends, served)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


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


async def test_lines_are_put_together_from_any_pieces() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for piece in (b"a", b"b\n", b"c\nd", b"\n\n", b"half"):
            yield piece

    assert [line async for line in lines(pieces())] == [b"ab", b"c", b"d", b""]


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
