"""A client's request in the simulation."""

from dataclasses import dataclass

from fastgen_runtime.front.goodness import Timings


@dataclass(slots=True, eq=False)
class Call:
    """A client's request on its way. timings: as the replica that answers it notes them."""

    id: str
    arrived: float
    prompt_tokens: int
    output_tokens: int
    timings: Timings
    retried: bool = False
