"""What Envoy keeps from the replicas' gRPC library, which would take it for a broken connection.

The library, grpc-core, resets a stream that is no call by the letter, and answers metadata that it
cannot read with INTERNAL. A balancer cannot tell either from a replica's failure.
"""

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import grpc

Config: TypeAlias = dict[str, Any]

ENCODINGS: Final = ("identity", "gzip", "deflate")
"""Those that the library knows. What of them a replica opens, it says itself."""
TIMEOUT_PATTERN: Final = "[0-9]{1,8}[HMSmun]"
UNREAD_METADATA: Final[tuple[Config, ...]] = (
    # By the specification its values are base64; ours has none.
    {"suffix": "-bin"},
    # A name that HTTP allows and gRPC does not.
    {"safe_regex": {"regex": ".*[^a-z0-9_.:-].*"}},
    *(
        {"exact": name}
        for name in (
            "grpc-status",
            "grpc-previous-rpc-attempts",
            "grpc-retry-pushback-ms",
            "grpc-internal-encoding-request",
        )
    ),
)
"""Names of what the library reads, or refuses to, and no server of ours: whoever sends it gets
what he would get without it."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One way in which a request of gRPC's content type is no call."""

    header: str
    pattern: str
    """What the header has to be, in whole."""
    needed: bool
    """Whether a request without the header is at fault, too."""
    message: str
    status: grpc.StatusCode = grpc.StatusCode.INVALID_ARGUMENT


FAULTS: Final = (
    Fault(":method", "POST", True, "A gRPC call is a POST; this one has another :method."),
    Fault("te", "trailers", True, "A gRPC call has the header `te: trailers`; this one has not."),
    Fault(
        "grpc-timeout",
        TIMEOUT_PATTERN,
        False,
        "The header grpc-timeout is not 1 to 8 digits and a unit, one of H, M, S, m, u and n.",
    ),
    Fault(
        "grpc-encoding",
        "|".join(ENCODINGS),
        False,
        "The header grpc-encoding names a compression that this server does not know; it knows "
        f"{', '.join(ENCODINGS)}.",
        grpc.StatusCode.UNIMPLEMENTED,
    ),
)


def doors(match: Config) -> list[Config]:
    """Routes that answer each fault of the requests that match, before picker and replicas see it.

    Such an answer counts as the client's own error, whatever becomes of it.
    """
    return [_door(match, fault) for fault in FAULTS]


def _door(match: Config, fault: Fault) -> Config:
    header = {
        "name": fault.header,
        "string_match": {"safe_regex": {"regex": fault.pattern}},
        "invert_match": True,
        "treat_missing_header_as_empty": fault.needed,
    }
    told = {"grpc-status": str(fault.status.value[0])}
    if fault.status is grpc.StatusCode.UNIMPLEMENTED:
        told["grpc-accept-encoding"] = ",".join(ENCODINGS)
    return {
        "match": match | {"headers": [header]},
        # The body becomes the status' message; Envoy's own status by HTTP's would be INTERNAL.
        "direct_response": {"status": 400, "body": {"inline_string": fault.message}},
        "response_headers_to_add": [
            {
                "header": {"key": key, "value": value},
                "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
            }
            for key, value in told.items()
        ],
    }
