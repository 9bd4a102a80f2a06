"""What no HTTP library sends: bytes on a socket that never become one request in good order."""

import asyncio
import json
import re
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path

import httpx2
import pytest
from bystander import bystander
from open_requests import wait_for_running
from replica_process import ReplicaProcess

HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nx-request-id: mine\r\n"


@contextmanager
def connected(replica: ReplicaProcess) -> Iterator[socket.socket]:
    with closing(socket.create_connection(("127.0.0.1", replica.http_port), timeout=20)) as client:
        yield client


def request(**fields: object) -> bytes:
    body = json.dumps({"prompt": "Once", **fields}).encode()
    return HEAD + b"content-length: %d\r\n\r\n" % len(body) + body


def answer(client: socket.socket) -> tuple[int, dict[str, str], bytes]:
    """All that comes until the connection ends: status, headers, body."""
    got = b""
    while piece := client.recv(1 << 16):
        got += piece
    head, _, body = got.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    return int(status.split()[1]), headers, body


def check_error(got: tuple[int, dict[str, str], bytes], status: int, words: str) -> None:
    assert got[0] == status
    assert got[1]["connection"] == "close"
    assert got[1]["x-fastgen-replica"] == "replica-under-test"
    error = json.loads(got[2])["error"]
    assert re.search(words, error["message"])
    assert error["type"] in ("invalid_request_error", "timeout_error")


@pytest.mark.parametrize("is_reset", [False, True])
async def test_a_client_that_sent_two_requests_ahead_and_leaves_frees_its_blocks(
    replica: ReplicaProcess, is_reset: bool
) -> None:
    with connected(replica) as client:
        client.sendall(request(max_tokens=900, ignore_eos=True) * 2)
        await wait_for_running(replica, 1)
        client.sendall(request(max_tokens=900, ignore_eos=True) * 2)
        if is_reset:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert await wait_for_running(replica, 0) < 2


@pytest.mark.parametrize("ahead", [request(max_tokens=1), b"\x00 nothing of HTTP \r\n\r\n"])
def test_who_sends_ahead_gets_one_answer_and_the_end(replica: ReplicaProcess, ahead: bytes) -> None:
    with connected(replica) as client:
        client.sendall(request(max_tokens=2) + ahead)
        status, headers, body = answer(client)
    assert (status, headers["connection"]) == (200, "close")
    assert body.count(b'"completion_tokens":2') == body.count(b'"usage"') == 1


def test_who_waits_for_answers_keeps_the_connection(replica: ReplicaProcess) -> None:
    with closing(HTTPConnection("127.0.0.1", replica.http_port, timeout=20)) as client:
        sockets = set()
        for path in ("/v1/completions", "/v1/nowhere", "/v1/completions"):
            client.request("POST", path, json.dumps({"prompt": "Once", "max_tokens": 1}))
            assert client.getresponse().read()
            sockets.add(client.sock)
    assert len(sockets) == 1


@pytest.mark.parametrize(
    ("sent", "status", "words"),
    [
        (HEAD + b"long: " + b"a" * (1 << 20), 431, "headers are longer than the 65536 bytes"),
        (HEAD + (b"many: " + b"b" * 58 + b"\r\n") * 9000, 431, "headers are longer"),
        (b"GET /" + b"a" * (1 << 20), 414, "URL is longer than the 16384 bytes"),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n1;" + b"x" * (1 << 20), 431, "longer"),
        (HEAD + b"transfer-encoding: chunked\r\n\r\nzz\r\n", 400, r"no HTTP/1\.1 request"),
        (HEAD + b"content-length: 5\r\ncontent-length: 6\r\n\r\nabcde", 400, "no HTTP"),
        (b"\x16\x03\x01\x00\xa5\r\n\r\n", 400, "no HTTP"),
    ],
    ids=["header", "headers", "url", "extension", "chunk", "lengths", "tls"],
)
def test_what_is_no_request_gets_an_error_in_good_form(
    replica: ReplicaProcess, sent: bytes, status: int, words: str
) -> None:
    with connected(replica) as client:
        client.sendall(sent)
        got = answer(client)
    check_error(got, status, words)
    assert got[1]["x-request-id"] == "mine" or not sent.startswith(HEAD)


def test_headers_that_the_balancer_lets_through_are_taken(replica: ReplicaProcess) -> None:
    headers = {f"x-{number}": "v" * 4000 for number in range(15)}
    assert httpx2.get(f"{replica.url}/health", headers=headers).status_code == 200


async def test_bodies_that_never_end_hold_little_memory(replica: ReplicaProcess) -> None:
    """The first of them give way, and nobody else does."""
    piece = b"80000\r\n" + b" " * (1 << 19)
    before = resident_mib(replica)
    clients = []
    try:
        async with bystander(replica):
            for _ in range(160):
                client = socket.create_connection(("127.0.0.1", replica.http_port), timeout=20)
                clients.append(client)
                await asyncio.to_thread(
                    client.sendall, HEAD + b"transfer-encoding: chunked\r\n\r\n" + piece
                )
            got = await asyncio.to_thread(answer, clients[0])
            check_error(got, 408, "others needed its room")
            assert got[1]["x-request-id"] == "mine"
        assert resident_mib(replica) - before < 64
    finally:
        for client in clients:
            client.close()
    deadline = time.monotonic() + 10
    # The C library keeps some of it, once: it does not grow with further such clients.
    while resident_mib(replica) - before > 28:
        assert time.monotonic() < deadline, resident_mib(replica) - before
        await asyncio.sleep(0.05)


def resident_mib(replica: ReplicaProcess) -> float:
    status = Path(f"/proc/{replica.process.pid}/status").read_text()
    (kib,) = re.findall(r"VmRSS:\s+(\d+) kB", status)
    return int(kib) / 1024


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [("GET", "/v1/completions", "POST"), ("POST", "/health", "GET, HEAD")],
)
def test_the_wrong_method_is_told_the_right_one(
    replica: ReplicaProcess, method: str, path: str, allowed: str
) -> None:
    got = httpx2.request(method, replica.url + path)
    assert (got.status_code, got.headers["allow"]) == (405, allowed)
    assert got.json()["error"]["message"] == f"{method} does nothing at {path}; {allowed} does"
