"""The endpoint-picker protocol's messages: what a gateway says, and what it is told."""

from typing import Any

import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2 as messages
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st

from fastgen_balancer import endpoint_picker_messages as protocol
from fastgen_balancer.endpoints import Endpoint

ENDPOINT = Endpoint("a", "10.0.0.1", 8000, 9000)


def message(namespace: str, value: dict[str, Any]) -> messages.ProcessingRequest:
    raw = {"metadataContext": {"filterMetadata": {namespace: value}}}
    return json_format.ParseDict(raw, messages.ProcessingRequest())


@pytest.mark.parametrize(
    ("value", "subset"),
    [
        ({}, None),
        ({"other": ["10.0.0.1:8000"]}, None),
        ({protocol.SUBSET: []}, set()),
        ({protocol.SUBSET: ["10.0.0.1:8000", " 10.0.0.2:8000 "]},
         {"10.0.0.1:8000", "10.0.0.2:8000"}),
        ({protocol.SUBSET: "10.0.0.1:8000, 10.0.0.2:8000"}, {"10.0.0.1:8000", "10.0.0.2:8000"}),
        ({protocol.SUBSET: ""}, set()),
        ({protocol.SUBSET: [1, "", "10.0.0.1:8000"]}, {"10.0.0.1:8000"}),
        ({protocol.SUBSET: {"a": "b"}}, set()),
    ],
)  # fmt: skip
def test_the_subset_that_a_gateway_allows(value: dict[str, Any], subset: set[str] | None) -> None:
    assert protocol.subset_of(message(protocol.SUBSET_NAMESPACE, value)) == subset


def test_without_metadata_there_is_neither_subset_nor_served_endpoint() -> None:
    assert protocol.subset_of(messages.ProcessingRequest()) is None
    assert protocol.served_of(messages.ProcessingRequest()) is None
    served = message(protocol.NAMESPACE, {protocol.SERVED: "10.0.0.1:8000"})
    assert protocol.served_of(served) == "10.0.0.1:8000"


@pytest.mark.parametrize(
    ("subset", "is_grpc", "address"),
    [
        (None, False, "10.0.0.1:8000"),
        (None, True, "10.0.0.1:9000"),
        ({"10.0.0.1"}, True, "10.0.0.1:9000"),
        ({"10.0.0.1:8000"}, False, "10.0.0.1:8000"),
        ({"10.0.0.1:8000"}, True, "10.0.0.1:8000"),
        ({"10.0.0.1:8000", "10.0.0.1:9000"}, True, "10.0.0.1:9000"),
        ({"10.0.0.2:8000"}, False, None),
        (set(), False, None),
    ],
)
def test_where_a_request_goes_at_an_endpoint(
    subset: set[str] | None, is_grpc: bool, address: str | None
) -> None:
    allowed = None if subset is None else frozenset(subset)
    assert protocol.address_in(ENDPOINT, allowed, is_grpc=is_grpc) == address


def test_header_and_metadata_say_the_same() -> None:
    answer = protocol.destination(["10.0.0.1:8000", "10.0.0.2:8000"], {"x": "y"}, in_body=False)
    told = json_format.MessageToDict(answer.dynamic_metadata)
    assert told == {"envoy.lb": {protocol.DESTINATION: "10.0.0.1:8000,10.0.0.2:8000"}}
    mutation = answer.request_headers.response.header_mutation
    headers = {each.header.key: each.header.raw_value.decode() for each in mutation.set_headers}
    assert headers == {protocol.DESTINATION: "10.0.0.1:8000,10.0.0.2:8000", "x": "y"}
    in_body = protocol.destination(["10.0.0.1:8000"], {}, in_body=True)
    assert in_body.WhichOneof("response") == "request_body"


@given(body=st.binary(max_size=200), size=st.integers(1, 64), ends=st.booleans())
def test_the_pieces_of_a_body_are_the_body(body: bytes, size: int, ends: bool) -> None:
    found = [each.body_mutation.streamed_response for each in
             protocol._pieces(body, ends=ends, size=size)]  # fmt: skip
    assert b"".join(piece.body for piece in found) == body
    assert all(len(piece.body) <= size for piece in found)
    assert [piece.end_of_stream for piece in found] == [False] * (len(found) - 1) + [ends]
