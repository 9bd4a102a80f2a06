"""One request on its way, as Envoy tells of it."""

from dataclasses import dataclass

from fastgen_api.names import Header
from fastgen_balancer.envoy_routes import GENERATE_PATH, HTTP_PREFIX
from fastgen_balancer.estimate import Size
from fastgen_balancer.prompt import PromptKeys


@dataclass(slots=True)
class Exchange:
    """One request on its way."""

    id: str
    method: str
    path: str
    is_grpc: bool
    size: Size
    began_at: float
    deadline: float | None = None
    """When its client gives up, seconds of the monotonic clock."""
    keys: PromptKeys | None = None
    once: bool = False
    """Whether Envoy may not retry it: it was there when a replica crashed."""
    client_id: str | None = None
    """The request's id, when the client has named a sound one."""
    placed_at: float | None = None
    answered: bool = False
    """Whether the answer has begun: from then on the access log ends it in the books."""

    @property
    def generates(self) -> bool:
        return is_generation(self.method, self.path, self.is_grpc)


def is_generation(method: str, path: str, is_grpc: bool) -> bool:
    """Whether a request occupies an engine."""
    path = path.partition("?")[0]
    if is_grpc:
        return path == GENERATE_PATH
    return method == "POST" and path.startswith(HTTP_PREFIX)


def own_id(exchange: Exchange) -> dict[str, str]:
    """The header that makes a client's id the request's, for replica, answer and log alike."""
    return {Header.REQUEST_ID: exchange.client_id} if exchange.client_id else {}
