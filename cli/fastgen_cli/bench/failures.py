"""Failures: their kinds, and what a person can do about one that hits every request."""

import json
from typing import Final

import grpc
import httpx2

from fastgen_cli.bench.record import Failure

STATUS_OF_CODE: Final = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.UNIMPLEMENTED: 501,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
}
"""The HTTP status that says the same; the SLO does not count what is the client's own fault."""

NOT_REACHED: Final = "not reached"
TIMED_OUT: Final = "timed out"
BROKE_OFF: Final = "the answer broke off"
NOT_SENT: Final = "not sent: too many in flight"
NO_TOKEN: Final = "an answer without a token"
NO_USAGE: Final = "a stream without usage"
_MOST_CHARACTERS: Final = 300


def of_status(status: int, body: bytes) -> Failure:
    """Of an answer that is no 200."""
    return Failure(f"HTTP {status}", status, _words(body))


def _words(body: bytes) -> str:
    """The message in an OpenAI error body, else the body's begin."""
    text = body.decode(errors="replace").strip()
    try:
        value = json.loads(text)
    except ValueError:
        return text[:_MOST_CHARACTERS]
    error = value.get("error", value) if isinstance(value, dict) else value
    message = error.get("message") if isinstance(error, dict) else error
    return (message if isinstance(message, str) else text)[:_MOST_CHARACTERS]


def of_http(error: httpx2.HTTPError, has_begun: bool) -> Failure:
    """Of a connection; has_begun: whether the answer's headers had come."""
    if isinstance(error, httpx2.TimeoutException):
        kind = NOT_REACHED if isinstance(error, httpx2.ConnectTimeout) else TIMED_OUT
        return Failure(kind, 0, type(error).__name__)
    return Failure(BROKE_OFF if has_begun else NOT_REACHED, 0, str(error) or type(error).__name__)


def of_code(code: grpc.StatusCode, details: str, has_begun: bool) -> Failure:
    """Of a gRPC call; has_begun: whether a token had come."""
    status = STATUS_OF_CODE.get(code, 500)
    words = details[:_MOST_CHARACTERS]
    if has_begun and code is grpc.StatusCode.UNAVAILABLE:
        return Failure(BROKE_OFF, 0, words)
    return Failure(f"gRPC {code.name}", status, words)


def advice(failure: Failure, address: str, model: str) -> str:
    """What a failure of the first request means, and the way out."""
    said = f": {failure.message.rstrip('.')}" if failure.message else ""
    match failure.status:
        case 401 | 403:
            return (
                f"{address} wants an API key that it knows{said}. "
                "Set OPENAI_API_KEY, or give a file with --api-key-file."
            )
        case 404 | 501:
            return (
                f"{address} does not know the request (model {model!r}){said}. "
                "Check --model, --api and the address."
            )
        case 400 | 422:
            return (
                f"{address} refuses the request{said}. An endpoint that knows no ignore_eos takes "
                "--no-ignore-eos; one that is for shorter texts takes --max-length."
            )
        case 429 | 503:
            return f"{address} takes no requests now ({failure.kind}{said}). Try again in a moment."
    if failure.kind == NOT_REACHED:
        return (
            f"Nothing answers at {address}{said}. "
            "Start a server with `fastgen serve smollm2`, or check the address."
        )
    if failure.kind == TIMED_OUT:
        return f"{address} did not answer in time{said}. --timeout sets how long to wait."
    if failure.kind == NO_USAGE:
        return (
            f"{address} does not count tokens: its streams end without usage, though "
            "stream_options ask for it. Count them here with --tokenizer FILE."
        )
    return f"{address}: {failure.kind}{said}."
