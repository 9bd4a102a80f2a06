"""A hub on loopback: the endpoints of huggingface.co that `huggingface_hub` asks for models.

Files above a few kilobytes are redirected to a second host name, as the real hub redirects them to
its content network.
"""

import contextlib
import hashlib
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

COMMIT = "c0ffee" * 6 + "cafe"
TOKEN = "hf_secretOfTheTest"
_LARGE_BYTES = 4096


@dataclass
class HubServer:
    """One repository, `test/tiny`, with the files of a folder, and what was asked of it.

    is_gated: files need TOKEN. is_private: everything does. cut: file names whose next transfer
    breaks off in the middle. damaged: file names that are sent with a wrong byte.
    """

    folder: Path
    is_gated: bool = False
    is_private: bool = False
    gguf_architecture: str | None = None
    cut: set[str] = field(default_factory=set)
    damaged: set[str] = field(default_factory=set)
    url: str = ""
    requests: list[str] = field(default_factory=list)
    """`METHOD path [range]` of each."""
    tokens_on_content_network: list[str] = field(default_factory=list)

    @property
    def downloaded(self) -> list[str]:
        """Names of the files that were sent, in order, one for each transfer."""
        gets = [line.split() for line in self.requests if line.startswith("GET")]
        return [
            path.rpartition("/")[2]
            for _, path, *_ in gets
            if "/resolve/" in path or path.startswith("/content/")
        ]

    def routes(self) -> list[Route]:
        return [
            Route("/api/models/test/tiny", self._info),
            Route("/api/models/test/tiny/revision/{revision:path}", self._info),
            Route("/api/models/test/tiny/tree/{revision}", self._tree),
            Route("/test/tiny/resolve/{revision}/{name}", self._resolve),
            Route("/content/{name}", self._content),
            Route("/{rest:path}", self._nothing),
        ]

    def _note(self, request: Request) -> None:
        span = request.headers.get("range", "")
        self.requests.append(f"{request.method} {request.url.path} {span}".strip())

    def _has_token(self, request: Request) -> bool:
        return request.headers.get("authorization") == f"Bearer {TOKEN}"

    async def _info(self, request: Request) -> Response:
        self._note(request)
        if self.is_private and not self._has_token(request):
            return _refusal(401, "RepoNotFound")
        if request.path_params.get("revision", "main") not in ("main", "v1", COMMIT):
            return _refusal(404, "RevisionNotFound")
        info: dict[str, object] = {"id": "test/tiny", "sha": COMMIT, "siblings": []}
        if self.gguf_architecture is not None:
            info["gguf"] = {"architecture": self.gguf_architecture}
        return JSONResponse(info)

    async def _tree(self, request: Request) -> Response:
        self._note(request)
        entries = []
        for path in sorted(self.folder.iterdir()):
            data = path.read_bytes()
            entry: dict[str, object] = {
                "type": "file",
                "path": path.name,
                "size": len(data),
                "oid": _git_hash(data),
            }
            if len(data) > _LARGE_BYTES:
                oid = hashlib.sha256(data).hexdigest()
                entry["lfs"] = {"oid": oid, "size": len(data), "pointerSize": 128}
            entries.append(entry)
        return JSONResponse(entries)

    async def _resolve(self, request: Request) -> Response:
        self._note(request)
        if (self.is_gated or self.is_private) and not self._has_token(request):
            return _refusal(401, "GatedRepo" if self.is_gated else "RepoNotFound")
        path = self.folder / request.path_params["name"]
        if not path.is_file():
            return _refusal(404, "EntryNotFound")
        data = path.read_bytes()
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{_git_hash(data)}"'}
        if len(data) <= _LARGE_BYTES:
            return Response(data, headers=headers)
        headers |= {
            "X-Linked-ETag": f'"{hashlib.sha256(data).hexdigest()}"',
            "X-Linked-Size": str(len(data)),
            "Location": self.url.replace("127.0.0.1", "localhost") + f"/content/{path.name}",
        }
        return Response(status_code=302, headers=headers)

    async def _content(self, request: Request) -> Response:
        self._note(request)
        if token := request.headers.get("authorization"):
            self.tokens_on_content_network.append(token)
        name = request.path_params["name"]
        data = (self.folder / name).read_bytes()
        if name in self.damaged:
            data = bytes([data[0] ^ 1]) + data[1:]
        start = 0
        if span := request.headers.get("range"):
            start = int(span.removeprefix("bytes=").partition("-")[0])
        headers = {"Content-Length": str(len(data) - start), "Accept-Ranges": "bytes"}
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        is_cut = name in self.cut
        self.cut.discard(name)
        return StreamingResponse(
            _pieces(data[start:], is_cut), status_code=206 if start else 200, headers=headers
        )

    async def _nothing(self, request: Request) -> Response:
        self._note(request)
        return _refusal(401, "RepoNotFound")


async def _pieces(data: bytes, is_cut: bool) -> AsyncIterator[bytes]:
    half = len(data) // 2
    yield data[:half]
    if is_cut:
        raise ConnectionAbortedError("the test cuts the line")
    yield data[half:]


def _refusal(status: int, code: str) -> Response:
    return Response(status_code=status, headers={"X-Error-Code": code, "X-Error-Message": code})


def _git_hash(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@contextlib.contextmanager
def serving_hub(folder: Path) -> Iterator[HubServer]:
    """Serves the folder's files, as they are when they are asked for, until the block ends."""
    hub = HubServer(folder)
    app = Starlette(routes=hub.routes())
    listener = socket.create_server(("127.0.0.1", 0))
    hub.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    config = uvicorn.Config(app, log_level="critical", lifespan="off", ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.should_exit = True
        thread.join(10)
        listener.close()
