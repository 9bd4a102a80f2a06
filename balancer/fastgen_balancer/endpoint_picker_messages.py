"""The endpoint-picker protocol of the Gateway API Inference Extension, as messages.

Source: proposal 004 of kubernetes-sigs/gateway-api-inference-extension, version 1.0.0.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from envoy.extensions.filters.http.ext_proc.v3.processing_mode_pb2 import ProcessingMode
from envoy.service.ext_proc.v3 import external_processor_pb2 as messages
from google.protobuf import json_format, struct_pb2

from fastgen_balancer.endpoints import Endpoint
from fastgen_balancer.refusal import header_mutation

DESTINATION: Final = "x-gateway-destination-endpoint"
"""Header, and key of the metadata, with the endpoints in order of preference."""
NAMESPACE: Final = "envoy.lb"
SUBSET_NAMESPACE: Final = "envoy.lb.subset_hint"
SUBSET: Final = "x-gateway-destination-endpoint-subset"
SERVED: Final = "x-gateway-destination-endpoint-served"
MAX_CHUNK_BYTES: Final = 62_000
"""Of a body that is streamed back: gateways take at most 64 KiB at a time."""


def subset_of(message: messages.ProcessingRequest) -> frozenset[str] | None:
    """The endpoints that may be picked, `ip:port` or `ip`; None: all; an empty set: none."""
    hint = _metadata(message, SUBSET_NAMESPACE).get(SUBSET)
    if hint is None:
        return None
    parts = hint.split(",") if isinstance(hint, str) else hint
    if not isinstance(parts, list):
        return frozenset()
    return frozenset(part.strip() for part in parts if isinstance(part, str) and part.strip())


def served_of(message: messages.ProcessingRequest) -> str | None:
    """The endpoint that has answered, `ip:port`; None where the gateway does not tell."""
    served = _metadata(message, NAMESPACE).get(SERVED)
    return served if isinstance(served, str) and served else None


def _metadata(message: messages.ProcessingRequest, namespace: str) -> Mapping[str, Any]:
    found = message.metadata_context.filter_metadata
    return json_format.MessageToDict(found[namespace]) if namespace in found else {}


def address_in(endpoint: Endpoint, subset: frozenset[str] | None, *, is_grpc: bool) -> str | None:
    """Where a request goes at this endpoint; None: the subset does not have it."""
    addresses = [endpoint.http_address, endpoint.grpc_address]
    if is_grpc:
        addresses.reverse()
    if subset is None or endpoint.host in subset:
        return addresses[0]
    return next((address for address in addresses if address in subset), None)


def is_duplex(mode: int) -> bool:
    """Whether bodies of this mode come in pieces that must be sent back."""
    return bool(mode == ProcessingMode.FULL_DUPLEX_STREAMED)


def is_buffered(mode: int) -> bool:
    """Whether a body comes whole, after the headers have been answered."""
    return mode in (ProcessingMode.BUFFERED, ProcessingMode.BUFFERED_PARTIAL)


def destination(
    addresses: list[str], headers: Mapping[str, str], *, in_body: bool
) -> messages.ProcessingResponse:
    """Says where to, by header and by metadata alike; `headers` go to the replica too."""
    value = ",".join(addresses)
    common = messages.CommonResponse(
        header_mutation=header_mutation({DESTINATION: value, **headers}), clear_route_cache=True
    )
    mark = struct_pb2.Struct()
    mark.update({NAMESPACE: {DESTINATION: value}})
    if in_body:
        body = messages.BodyResponse(response=common)
        return messages.ProcessingResponse(request_body=body, dynamic_metadata=mark)
    return messages.ProcessingResponse(
        request_headers=messages.HeadersResponse(response=common), dynamic_metadata=mark
    )


def request_pieces(body: bytes, *, ends: bool) -> Iterator[messages.ProcessingResponse]:
    """A request's body on its way on; `ends`: no trailers follow."""
    for response in _pieces(body, ends=ends):
        yield messages.ProcessingResponse(request_body=messages.BodyResponse(response=response))


def response_piece(body: messages.HttpBody) -> messages.ProcessingResponse:
    """A piece of an answer on its way on."""
    (response,) = _pieces(body.body, ends=body.end_of_stream, size=max(1, len(body.body)))
    return messages.ProcessingResponse(response_body=messages.BodyResponse(response=response))


def _pieces(
    body: bytes, *, ends: bool, size: int = MAX_CHUNK_BYTES
) -> Iterator[messages.CommonResponse]:
    starts = range(0, max(1, len(body)), size)
    for start in starts:
        piece = messages.StreamedBodyResponse(
            body=body[start : start + size], end_of_stream=ends and start == starts[-1]
        )
        yield messages.CommonResponse(body_mutation=messages.BodyMutation(streamed_response=piece))
