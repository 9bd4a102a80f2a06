"""A client's request in the simulation."""

from dataclasses import dataclass

from fastgen_runtime.front.goodness import Timings


@dataclass(slots=True, eq=False)
class Call:
    """A client's request on its way. timings: as the replica that answers it notes them.

    max_tokens: the limit that the client named; None: the room that the model leaves.
    """

    id: str
    arrived: float
    prompt_tokens: int
    output_tokens: int
    timings: Timings
    max_tokens: int | None = None
    retried: bool = False
