"""An endpoint: the balancer's view of a replica."""

from collections.abc import Iterable, Mapping

import msgspec

from fastgen_api.names import Port

Address = tuple[str, int]


class Endpoint(msgspec.Struct, frozen=True):
    """Where a replica answers."""

    name: str
    """Of the pod, or `host:port` outside Kubernetes."""
    host: str
    http_port: int
    grpc_port: int
    terminating: bool = False
    """Its streams go on, new requests do not go there."""

    @property
    def place(self) -> tuple[str, int, int]:
        """What tells two replicas of one name apart."""
        return self.host, self.http_port, self.grpc_port

    @property
    def http_address(self) -> str:
        return format_address(self.host, self.http_port)

    @property
    def grpc_address(self) -> str:
        return format_address(self.host, self.grpc_port)


def format_address(host: str, port: int) -> str:
    """`host:port`, IPv6 in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_static(text: str) -> Endpoint:
    """Reads `HOST:HTTP_PORT:GRPC_PORT`; raises ValueError that says what is wrong."""
    host, _, ports = text.partition(":") if not text.startswith("[") else _bracketed(text)
    http, _, grpc = ports.partition(":")
    if not host or not http.isdecimal() or not grpc.isdecimal():
        raise ValueError(f"{text!r} is not HOST:HTTP_PORT:GRPC_PORT")
    if not all(0 < int(port) < 65536 for port in (http, grpc)):
        raise ValueError(f"{text!r} has a port that is not between 1 and 65535")
    return Endpoint(format_address(host, int(http)), host, int(http), int(grpc))


def _bracketed(text: str) -> tuple[str, str, str]:
    host, separator, ports = text[1:].partition("]:")
    return host, separator, ports


class SlicePort(msgspec.Struct, frozen=True):
    name: str | None = None
    port: int | None = None


class SliceConditions(msgspec.Struct, frozen=True):
    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class SliceTarget(msgspec.Struct, frozen=True):
    kind: str | None = None
    name: str | None = None


class SliceEndpoint(msgspec.Struct, frozen=True, rename="camel"):
    addresses: tuple[str, ...] = ()
    conditions: SliceConditions = SliceConditions()
    target_ref: SliceTarget | None = None


class Slice(msgspec.Struct, frozen=True, rename="camel"):
    """What we read of a discovery.k8s.io/v1 EndpointSlice."""

    ports: tuple[SlicePort, ...] = ()
    endpoints: tuple[SliceEndpoint, ...] = ()


def merge(slices: Iterable[Slice], pods: Mapping[str, bool]) -> tuple[Endpoint, ...]:
    """The endpoints that may serve, in the order of their names.

    `pods` maps the name of each pod to whether its deletion has begun: a pod tells of it before its
    EndpointSlice does. A pod that the slices still name but that is gone counts as terminating.
    Not-ready replicas are left out, unless they only end their last streams.
    """
    found: dict[str, Endpoint] = {}
    for item in slices:
        ports = {port.name: port.port for port in item.ports if port.port}
        for part in item.endpoints:
            name = part.target_ref.name if part.target_ref else None
            if not part.addresses or name is None:
                continue
            terminating = bool(part.conditions.terminating) or pods.get(name, True)
            if not terminating and part.conditions.ready is False:
                continue
            endpoint = Endpoint(
                name,
                part.addresses[0],
                ports.get("http", Port.REPLICA_HTTP),
                ports.get("grpc", Port.REPLICA_GRPC),
                terminating,
            )
            # Dual-stack Services have a slice per family; the first one serves.
            found.setdefault(name, endpoint)
    return tuple(found[name] for name in sorted(found))
