"""How the balancer says no, to HTTP and to gRPC clients."""

from dataclasses import dataclass
from typing import Final

import grpc
import msgspec
from envoy.config.core.v3 import base_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2
from envoy.type.v3 import http_status_pb2

from fastgen_balancer.envoy_listener import MAX_BODY_BYTES
from fastgen_balancer.envoy_replies import DETAILS
from fastgen_balancer.pick import Refusal


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    grpc_status: int
    message: str
    kind: str
    code: str
    retry_after_seconds: int | None = None
    """None: trying again would not help."""
    param: str | None = None
    """The field that is wrong."""


ANSWERS: Final = {
    Refusal.FULL: Answer(
        429,
        grpc.StatusCode.RESOURCE_EXHAUSTED.value[0],
        "Every replica and the queue are full; try again later.",
        "rate_limit_error",
        "queue_full",
        2,
    ),
    Refusal.DEADLINE: Answer(
        429,
        grpc.StatusCode.RESOURCE_EXHAUSTED.value[0],
        "Every replica is full, and the queue is longer than the request's time limit allows.",
        "rate_limit_error",
        "deadline_too_short",
        2,
    ),
    # As a replica says it of the requests that it has.
    Refusal.EXPIRED: Answer(
        504,
        grpc.StatusCode.DEADLINE_EXCEEDED.value[0],
        "The request's time limit ended while it waited for a replica with room for it.",
        "timeout_error",
        "deadline_exceeded",
        2,
    ),
    Refusal.NO_ENDPOINTS: Answer(
        503,
        grpc.StatusCode.UNAVAILABLE.value[0],
        "No replica is ready; try again later.",
        "server_error",
        "no_ready_replica",
        5,
    ),
    Refusal.TOO_LARGE: Answer(
        413,
        grpc.StatusCode.INVALID_ARGUMENT.value[0],
        f"The request is larger than {MAX_BODY_BYTES} bytes.",
        "invalid_request_error",
        "payload_too_large",
    ),
    Refusal.MALFORMED: Answer(
        400,
        grpc.StatusCode.INVALID_ARGUMENT.value[0],
        "The body is not one fastgen.v1.GenerateRequest in gRPC framing; strings have to be UTF-8.",
        "invalid_request_error",
        "malformed_request",
    ),
    # A client's own error as clients see it: they do not send it again by themselves.
    Refusal.QUARANTINED: Answer(
        422,
        grpc.StatusCode.FAILED_PRECONDITION.value[0],
        "This prompt was being served when two replicas crashed, so it is refused for a while; "
        "the replicas' logs tell why they crashed.",
        "invalid_request_error",
        "prompt_quarantined",
    ),
    Refusal.UNDECIDED: Answer(
        503,
        grpc.StatusCode.UNAVAILABLE.value[0],
        "A replica has just failed while it served this prompt; try again later.",
        "server_error",
        "replica_failed",
        2,
    ),
    Refusal.UNKNOWN_MODEL: Answer(
        404,
        grpc.StatusCode.NOT_FOUND.value[0],
        "This model is not served here; see /v1/models.",
        "invalid_request_error",
        "model_not_found",
        param="model",
    ),
    Refusal.MISSING_MODEL: Answer(
        400,
        grpc.StatusCode.INVALID_ARGUMENT.value[0],
        "The request names no model: set the field `model`; see /v1/models.",
        "invalid_request_error",
        "model_missing",
        param="model",
    ),
}


def immediate_response(
    refusal: Refusal,
    *,
    is_grpc: bool,
    retry_after_seconds: int | None = None,
    message: str | None = None,
) -> external_processor_pb2.ImmediateResponse:
    """The answer that Envoy gives in a replica's stead; None: the refusal's own time and words."""
    answer = ANSWERS[refusal]
    message = message or answer.message
    headers = {}
    seconds = retry_after_seconds or answer.retry_after_seconds
    if seconds is not None:
        headers["retry-after"] = str(seconds)
        # A call that is to be tried again by hand must not be tried again by the library.
        if is_grpc and answer.retry_after_seconds is not None:
            headers["grpc-retry-pushback-ms"] = str(seconds * 1000)
    if is_grpc:
        body = message.encode()
    else:
        headers["content-type"] = "application/json"
        body = error_body(message, answer.kind, answer.code, answer.param)
    response = external_processor_pb2.ImmediateResponse(
        status=http_status_pb2.HttpStatus(code=answer.status),
        headers=header_mutation(headers),
        body=body,
        details=DETAILS,
    )
    if is_grpc:
        response.grpc_status.status = answer.grpc_status
    return response


def header_mutation(headers: dict[str, str]) -> external_processor_pb2.HeaderMutation:
    """Sets headers, in place of what was there."""
    return external_processor_pb2.HeaderMutation(
        set_headers=[
            base_pb2.HeaderValueOption(
                header=base_pb2.HeaderValue(key=key, raw_value=value.encode()),
                append_action=base_pb2.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD,
            )
            for key, value in headers.items()
        ]
    )


def error_body(message: str, kind: str, code: str, param: str | None = None) -> bytes:
    """An error in the form of the OpenAI API."""
    error = {"message": message, "type": kind, "param": param, "code": code}
    return msgspec.json.encode({"error": error})
