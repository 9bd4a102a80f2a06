"""The autoscaler's memory as a text that its successor reads: an annotation of the Lease.

It is written with the renewals of the Lease, which are writes anyhow, so that a new leader knows
each wish of the stabilisation windows, each change that the policies count, how long replicas have
been pending and what one of them carries. Whoever takes the Lease replaces the very version that
it has read, so it has the last words of the one before.
"""

import msgspec

from fastgen_api.spec import ScalingMode
from fastgen_balancer.decision import Memory


class Memo(msgspec.Struct, frozen=True):
    """What a leader leaves. mode: in which the decisions were made."""

    mode: ScalingMode
    memory: Memory


def write(memo: Memo) -> str:
    """As JSON."""
    return msgspec.json.encode(memo).decode()


def read(text: str) -> Memo | None:
    """None: there is none, or another version's that does not read."""
    try:
        return msgspec.json.decode(text, type=Memo)
    except msgspec.DecodeError:
        return None
