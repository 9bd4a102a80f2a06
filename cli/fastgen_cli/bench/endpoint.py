"""What a load generator sends its requests to."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from fastgen_cli.bench.prompts import Prompt
from fastgen_cli.bench.record import Answer

Now = Callable[[], float]
"""Seconds since the start of the run."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How answers end and are drawn. ignore_eos: they get as long as asked, whatever the model
    says. temperature: None leaves it to the endpoint."""

    ignore_eos: bool = True
    temperature: float | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """One request as it is sent."""

    prompt: Prompt
    output_tokens: int
    key: str | None


class Endpoint(Protocol):
    """An endpoint of either protocol."""

    @property
    def address(self) -> str:
        """As the user names it."""
        ...

    async def find_model(self, key: str | None) -> str:
        """The model that is asked, checked as far as can be; raises UserError."""
        ...

    async def ask(self, call: Call, now: Now, on_token: Callable[[], None]) -> Answer:
        """Sends a request and reads its stream; raises NoAnswerError.

        `on_token` is called for each event that holds tokens.
        """
        ...

    async def close(self) -> None:
        """Closes the connections."""
        ...
