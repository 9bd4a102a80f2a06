"""OpenAI's list of models, where a balancer serves several."""

from typing import Any, Final
from urllib.parse import unquote

import msgspec
from envoy.service.ext_proc.v3 import external_processor_pb2 as messages
from envoy.type.v3 import http_status_pb2

from fastgen_balancer.choice import Unplaced, unknown_model
from fastgen_balancer.refusal import header_mutation
from fastgen_balancer.roster import Roster

PATH: Final = "/v1/models"
DETAILS: Final = "fastgen_answered"
"""Response code details of what the picker answers in a replica's stead."""


def answer_of(roster: Roster, method: str, path: str) -> dict[str, Any] | Unplaced | None:
    """The answer to a request for the list or for a model of it; None: it is another request."""
    path = path.partition("?")[0]
    if not roster.is_shared or method not in ("GET", "HEAD"):
        return None
    if path == PATH:
        return {"object": "list", "data": [_model(roster, name) for name in roster.owners]}
    if not path.startswith(f"{PATH}/"):
        return None
    name = unquote(path.removeprefix(f"{PATH}/"))
    return _model(roster, name) if name in roster.owners else unknown_model(roster, name)


def _model(roster: Roster, name: str) -> dict[str, Any]:
    owner = roster.entry(roster.owners[name])
    created = owner.created if owner else 0
    return {"id": name, "object": "model", "created": created, "owned_by": "fastgen"}


def immediate_answer(content: dict[str, Any]) -> messages.ProcessingResponse:
    """An answer that no replica need give."""
    response = messages.ImmediateResponse(
        status=http_status_pb2.HttpStatus(code=200),
        headers=header_mutation({"content-type": "application/json"}),
        body=msgspec.json.encode(content),
        details=DETAILS,
    )
    return messages.ProcessingResponse(immediate_response=response)
