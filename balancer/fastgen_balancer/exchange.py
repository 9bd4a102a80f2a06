"""One request on its way, as a proxy tells of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final

import grpc

from fastgen_api.names import Header
from fastgen_balancer.envoy_routes import GENERATE_PATH, HTTP_PREFIX
from fastgen_balancer.estimate import Size
from fastgen_balancer.prompt import PromptKeys

if TYPE_CHECKING:
    from fastgen_balancer.member import Member

UNAVAILABLE: Final[int] = grpc.StatusCode.UNAVAILABLE.value[0]
UNREAD: Final = Size(0)
"""Of a body that has not come."""


@dataclass(slots=True, kw_only=True)
class Exchange:
    """One request on its way."""

    witnessed: ClassVar[bool] = True
    """Whether our own Envoy tells what becomes of it, and so more than of itself."""
    id: str
    """Under which we count it."""
    method: str
    path: str
    is_grpc: bool
    began_at: float
    deadline: float | None = None
    """When its client gives up, seconds of the monotonic clock."""
    client_id: str | None = None
    """The request's id, when the client has named a sound one."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Until it is known whose it is."""
    member: "Member | None" = None
    """Whose it is; None: not known, or nobody's."""
    judged: bool = False
    """Whether the model that it names needs no more judging by the replica."""
    complaint: str = ""
    """Why it is nobody's."""
    size: Size = UNREAD
    body_bytes: int = 0
    """As they were sent: what the proxy holds."""
    keys: PromptKeys | None = None
    form: bytes = b""
    """Of the whole body: with all that is asked for beside the prompt."""
    once: bool = False
    """Whether it may be tried at one endpoint only: it was there when a replica crashed."""
    placed: bool = False
    status: int | None = None
    """Of the answer; None until it has begun."""
    grpc_status: int | None = None
    started: bool = False
    """Whether tokens came before the status of gRPC."""
    generates: bool = field(init=False)
    """Whether it occupies an engine."""

    def __post_init__(self) -> None:
        self.generates = is_generation(self.method, self.path, self.is_grpc)

    @property
    def answered(self) -> bool:
        """Whether the answer has begun."""
        return self.status is not None

    @property
    def is_unavailable(self) -> bool:
        """Whether no replica has answered."""
        return self.status == 503 or self.grpc_status == UNAVAILABLE

    def begin_answer(self, headers: dict[str, str]) -> None:
        """Notes the headers of the answer."""
        self.status = number_of(headers.get(":status", "")) or 0
        self.grpc_status = number_of(headers.get("grpc-status", ""))
        # A gRPC refusal is nothing but its status, which comes as a header.
        self.started = self.status == 200 and "grpc-status" not in headers


def is_generation(method: str, path: str, is_grpc: bool) -> bool:
    """Whether a request occupies an engine."""
    path = path.partition("?")[0]
    if is_grpc:
        return path == GENERATE_PATH
    return method == "POST" and path.startswith(HTTP_PREFIX)


def own_id(exchange: Exchange) -> dict[str, str]:
    """The header that makes a client's id the request's, for replica, answer and log alike."""
    return {Header.REQUEST_ID: exchange.client_id} if exchange.client_id else {}


def fields_of(headers: Any) -> dict[str, str]:
    """An envoy.config.core.v3.HeaderMap as text."""
    return {
        header.key: header.raw_value.decode("latin-1") or header.value for header in headers.headers
    }


def number_of(text: str) -> int | None:
    """A header's number; None: it is none."""
    return int(text) if text.isdecimal() else None
