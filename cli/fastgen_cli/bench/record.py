"""What a client saw of one request."""

from dataclasses import dataclass
from itertools import pairwise

from fastgen_cli.load import UNSENT, Sample


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a request got no whole answer.

    kind: a few words, the same for all failures alike. status: HTTP's, or the one that the gRPC
    code stands for; 0 without an answer. message: the endpoint's words, without any API key.
    """

    kind: str
    status: int = UNSENT
    message: str = ""


class NoAnswerError(Exception):
    """A request failed; the failure says why."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(f"{failure.kind}: {failure.message}")
        self.failure = failure


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer. token_seconds: when each token came, or each event that held some; seconds
    on the clock of the run. Counts of tokens are the endpoint's; None where it gives none."""

    token_seconds: tuple[float, ...]
    ended_seconds: float
    prompt_tokens: int | None
    output_tokens: int | None
    text: str = ""


@dataclass(frozen=True, slots=True)
class Record:
    """A request and what became of it; seconds are since the start of the run.

    late_seconds: how long after it was due the request left: the load generator's own fault.
    prompt_tokens, output_tokens: what the endpoint counted; what was asked for stands beside.
    """

    asked_prompt_tokens: int
    asked_output_tokens: int
    sent_seconds: float
    ended_seconds: float
    late_seconds: float = 0.0
    token_seconds: tuple[float, ...] = ()
    prompt_tokens: int = 0
    output_tokens: int = 0
    failure: Failure | None = None

    @property
    def latency_seconds(self) -> float:
        """From sending to the answer's end."""
        return self.ended_seconds - self.sent_seconds

    @property
    def ttft_seconds(self) -> float | None:
        """From sending to the first token."""
        return self.token_seconds[0] - self.sent_seconds if self.token_seconds else None

    @property
    def tpot_seconds(self) -> float | None:
        """(last - first) / (n - 1); None for fewer than two tokens."""
        if self.output_tokens < 2 or len(self.token_seconds) < 2:
            return None
        return (self.token_seconds[-1] - self.token_seconds[0]) / (self.output_tokens - 1)

    @property
    def token_gaps(self) -> list[float]:
        """Seconds between each token and the one before."""
        return [after - before for before, after in pairwise(self.token_seconds)]

    def as_sample(self) -> Sample:
        """What the SLO is judged by: `fastgen_cli.summary`."""
        return Sample(
            sent_seconds=self.sent_seconds,
            ended_seconds=self.ended_seconds,
            status=self.failure.status if self.failure else 200,
            ttft_seconds=self.ttft_seconds,
            tpot_seconds=self.tpot_seconds,
            gap_seconds=max(self.token_gaps, default=None),
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.output_tokens,
            error=self.failure.kind if self.failure else "",
        )
