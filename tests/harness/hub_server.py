"""A hub and a web server with all their moods, on any address.

The endpoints of huggingface.co that models are fetched from, and plain files with ranges. Files
above a few kilobytes are redirected to a second host name, as the real hub redirects them to its
content network, with a signature in the query that no log may show.
"""

import contextlib
import gzip
import hashlib
import socket
import threading
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import uvicorn
from certificates import Certificate
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

COMMIT = "c0ffee" * 6 + "cafe"
TOKEN = "hf_secretOfTheTest"
SIGNATURE = "signatureOfTheTest"
API = "api"
"""Stands for the hub's API in `HubServer.faults`."""
_LARGE_BYTES = 4096
_PIECE_BYTES = 16384
_SLICES_PER_SECOND = 20


@dataclass(frozen=True)
class Fault:
    """What goes wrong with one answer.

    status: answered instead of the file. ending: what happens after the share `at` of the body;
    `cut` announces only that much. is_damaged: one byte is wrong.
    """

    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    at: float = 1.0
    ending: Literal["stall", "break", "cut"] | None = None
    is_damaged: bool = False


def head_of(name: str) -> str:
    """Stands in `HubServer.faults` for a file's first 64 KiB, when no more is asked for."""
    return f"{name} head"


def throttled(retry_after: str | None, status: int = 429) -> Fault:
    """retry_after: the header's text."""
    return Fault(status, {"Retry-After": retry_after} if retry_after is not None else {})


STALLED = Fault(at=0.5, ending="stall")
BROKEN = Fault(at=0.5, ending="break")
CUT = Fault(at=0.5, ending="cut")
DAMAGED = Fault(is_damaged=True)


@dataclass
class HubServer:
    """One repository, `test/tiny`, with the files of a folder, and what was asked of it.

    The files are plain ones below `/files/`, too, and behind a redirect below `/moved/`.

    is_gated: files need TOKEN. is_private: everything does. faults: by the file's name (or API),
    one for each of the next answers. always: the same for all that have none of their own.
    listed_bytes: sizes that the API tells instead of the files' own. bytes_per_second: of each
    answer. has_ranges, has_etags: of the plain files. compresses: whether clients want it or not.
    """

    folder: Path
    is_gated: bool = False
    is_private: bool = False
    has_ranges: bool = True
    has_etags: bool = True
    compresses: bool = False
    bytes_per_second: int | None = None
    faults: dict[str, deque[Fault]] = field(default_factory=lambda: defaultdict(deque))
    always: dict[str, Fault] = field(default_factory=dict)
    listed_bytes: dict[str, int] = field(default_factory=dict)
    url: str = ""
    content_url: str = ""
    requests: list[str] = field(default_factory=list)
    """`METHOD path [range]` of each."""
    sent_bytes: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Of each file's content, over all answers."""
    tokens_on_content_network: list[str] = field(default_factory=list)
    _answered: list[tuple[str, bool]] = field(default_factory=list)
    _closing: threading.Event = field(default_factory=threading.Event)

    @property
    def downloaded(self) -> list[str]:
        """Names of the files that were asked for from their first byte to their last, in order.

        One for each time. Answers that redirect, or fail, or hold only a file's head are none.
        """
        return [name for name, is_whole in self._answered if is_whole]

    def reset(self) -> None:
        """Forgets what was asked."""
        self.requests.clear()
        self.sent_bytes.clear()
        self._answered.clear()

    def routes(self) -> list[Route]:
        return [
            Route("/api/models/test/tiny", self._info),
            Route("/api/models/test/tiny/revision/{revision:path}", self._info),
            Route("/test/tiny/resolve/{revision}/{name}", self._resolve),
            Route("/content/{name}", self._content),
            Route("/files/{name}", self._file),
            Route("/moved/{name}", self._moved),
            Route("/{rest:path}", self._nothing),
        ]

    def _note(self, request: Request) -> None:
        span = request.headers.get("range", "")
        self.requests.append(f"{request.method} {request.url.path} {span}".strip())

    def _has_token(self, request: Request) -> bool:
        return request.headers.get("authorization") == f"Bearer {TOKEN}"

    def _next_fault(self, name: str) -> Fault:
        waiting = self.faults[name]
        return waiting.popleft() if waiting else self.always.get(name, Fault())

    def _info(self, request: Request) -> Response:
        self._note(request)
        fault = self._next_fault(API)
        if fault.status is not None:
            return Response(status_code=fault.status, headers=fault.headers)
        if self.is_private and not self._has_token(request):
            return _refusal(401, "RepoNotFound")
        if request.path_params.get("revision", "main") not in ("main", "v1", COMMIT):
            return _refusal(404, "RevisionNotFound")
        files = [
            self._sibling(path, request.query_params.get("blobs") == "true")
            for path in sorted(self.folder.iterdir())
        ]
        return JSONResponse({"id": "test/tiny", "sha": COMMIT, "siblings": files})

    def _sibling(self, path: Path, with_sizes: bool) -> dict[str, object]:
        entry: dict[str, object] = {"rfilename": path.name}
        if with_sizes:
            data = path.read_bytes()
            size = self.listed_bytes.get(path.name, len(data))
            entry |= {"size": size, "blobId": git_hash(data)}
            if len(data) > _LARGE_BYTES:
                sha256 = hashlib.sha256(data).hexdigest()
                entry["lfs"] = {"sha256": sha256, "size": size, "pointerSize": 128}
        return entry

    def _resolve(self, request: Request) -> Response:
        self._note(request)
        if (self.is_gated or self.is_private) and not self._has_token(request):
            return _refusal(401, "GatedRepo" if self.is_gated else "RepoNotFound")
        path = self.folder / request.path_params["name"]
        if not path.is_file():
            return _refusal(404, "EntryNotFound")
        if path.stat().st_size <= _LARGE_BYTES:
            return self._answer(request, path)
        target = f"{self.content_url}/content/{path.name}?X-Amz-Signature={SIGNATURE}"
        return RedirectResponse(target, 302)

    def _content(self, request: Request) -> Response:
        self._note(request)
        if token := request.headers.get("authorization"):
            self.tokens_on_content_network.append(token)
        if request.query_params.get("X-Amz-Signature") != SIGNATURE:
            return Response(status_code=403)
        return self._answer(request, self.folder / request.path_params["name"])

    def _file(self, request: Request) -> Response:
        self._note(request)
        if self.is_private and not self._has_token(request):
            return Response(status_code=403 if "authorization" in request.headers else 401)
        path = self.folder / request.path_params["name"]
        return self._answer(request, path) if path.is_file() else Response(status_code=404)

    def _moved(self, request: Request) -> Response:
        self._note(request)
        name = request.path_params["name"]
        return RedirectResponse(
            f"{self.content_url}/content/{name}?X-Amz-Signature={SIGNATURE}", 302
        )

    def _nothing(self, request: Request) -> Response:
        self._note(request)
        return _refusal(401, "RepoNotFound")

    def _answer(self, request: Request, path: Path) -> Response:
        """The file, or the part that was asked for, or what goes wrong with it."""
        is_head = request.headers.get("range", "") == "bytes=0-65535"
        fault = self._next_fault(head_of(path.name) if is_head else path.name)
        if fault.status is not None:
            return Response(status_code=fault.status, headers=fault.headers)
        data = path.read_bytes()
        etag = f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'
        if fault.is_damaged:
            data = data[:-1] + bytes([data[-1] ^ 1])
        if fault.ending == "cut":
            data = data[: len(data) // 2]
        start, end = 0, len(data)
        span = request.headers.get("range", "") if self.has_ranges else ""
        if span and request.headers.get("if-range", etag) == etag:
            first, _, last = span.removeprefix("bytes=").partition("-")
            start, end = int(first), min(len(data), int(last) + 1) if last else len(data)
            if start >= len(data):
                return Response(status_code=416, headers={"Content-Range": f"bytes */{len(data)}"})
        self._answered.append((path.name, start == 0 and not is_head))
        headers = {"Content-Length": str(end - start)}
        headers |= {"Accept-Ranges": "bytes"} if self.has_ranges else {}
        headers |= {"ETag": etag} if self.has_etags else {}
        if self.compresses and not start:
            data = gzip.compress(data)
            end = len(data)
            headers |= {"Content-Length": str(end), "Content-Encoding": "gzip"}
        is_part = (start, end) != (0, len(data))
        if is_part:
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(data)}"
        return StreamingResponse(
            self._pieces(path.name, data[start:end], fault), 206 if is_part else 200, headers
        )

    def _pieces(self, name: str, data: bytes, fault: Fault) -> Iterator[bytes]:
        end = int(len(data) * fault.at) if fault.ending in ("stall", "break") else len(data)
        step = max(1, min(_PIECE_BYTES, (self.bytes_per_second or 10**12) // _SLICES_PER_SECOND))
        for at in range(0, end, step):
            piece = data[at : min(at + step, end)]
            self.sent_bytes[name] += len(piece)
            yield piece
            if self.bytes_per_second is not None:
                self._closing.wait(len(piece) / self.bytes_per_second)
        if fault.ending == "stall":
            self._closing.wait()
        if fault.ending in ("stall", "break"):
            raise ConnectionAbortedError("the test cuts the line")


def _refusal(status: int, code: str) -> Response:
    return Response(status_code=status, headers={"X-Error-Code": code, "X-Error-Message": code})


def git_hash(data: bytes) -> str:
    """What Git calls a file of this content."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


@contextlib.contextmanager
def serving_hub(
    folder: Path,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    certificate: Certificate | None = None,
    known_as: str | None = None,
    content_known_as: str | None = None,
) -> Iterator[HubServer]:
    """Serves the folder's files, as they are when they are asked for, until the block ends.

    host, port: what it listens on. known_as: the name that clients call it by, if it is no
    loopback address; content_known_as: another name of the same server.
    """
    hub = HubServer(folder)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family)
    scheme, port = "https" if certificate else "http", listener.getsockname()[1]
    hub.url = f"{scheme}://{known_as or '127.0.0.1'}:{port}"
    hub.content_url = f"{scheme}://{content_known_as or known_as or 'localhost'}:{port}"
    config = uvicorn.Config(
        Starlette(routes=hub.routes()),
        log_level="critical",
        lifespan="off",
        ws="none",
        ssl_certfile=certificate.certificate if certificate else None,
        ssl_keyfile=certificate.key if certificate else None,
        timeout_graceful_shutdown=2,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub._closing.set()
        server.should_exit = True
        thread.join(10)
        listener.close()
