"""What a client sent at once: one prompt or several, counted and logged as one request."""

from collections.abc import Sequence

from fastgen_runtime.front.answer import Usage, sum_of
from fastgen_runtime.front.generation import Generation, RequestError
from fastgen_runtime.front.goodness import Timings
from fastgen_runtime.front.stream import Choice, Stream


class Submission:
    """generations: one per prompt. received: Unix seconds; arrived: on `time.monotonic`'s clock."""

    __slots__ = ("arrived", "generations", "received", "streams")

    def __init__(self, generations: Sequence[Generation], received: float, arrived: float) -> None:
        self.generations = generations
        self.received = received
        self.arrived = arrived
        self.streams: list[Stream] = []

    @property
    def generation(self) -> Generation:
        """The first prompt's; all but the prompt is the same in the others."""
        return self.generations[0]

    @property
    def waited(self) -> float:
        """Seconds at a balancer."""
        return self.generation.waited_seconds or 0.0

    @property
    def num_choices(self) -> int:
        """Of all prompts."""
        return self.generation.num_choices * len(self.generations)

    @property
    def has_begun(self) -> bool:
        """Whether the engine knows of one of the prompts."""
        return any(stream.command_number is not None for stream in self.streams)

    @property
    def is_finished(self) -> bool:
        """Whether every choice of every prompt is complete, taken or not."""
        streams = self.streams
        return len(streams) == len(self.generations) and all(s.is_finished for s in streams)

    @property
    def choices(self) -> list[Choice]:
        """Of the prompts that have begun."""
        return [choice for stream in self.streams for choice in stream.choices]

    @property
    def usage(self) -> Usage:
        """Tokens so far, of all prompts."""
        return sum_of(stream.usage for stream in self.streams)

    @property
    def timings(self) -> Timings:
        """Of all choices, the client having come once.

        A first token may take as long as the longest prompt allows.
        """
        if len(self.streams) == 1:
            return self.streams[0].timings
        timings = Timings(self.arrived, self.waited)
        if self.streams:
            each = [stream.timings for stream in self.streams]
            timings.prompt_tokens = max(one.prompt_tokens for one in each)
            timings.choices = [times for one in each for times in one.choices]
        return timings

    def named(self, error: RequestError, number: int) -> RequestError:
        """The error of a prompt, with its number where there are several."""
        if len(self.generations) == 1:
            return error
        if error.field != "prompt" or not error.message.startswith("prompt"):
            return error
        field = f"prompt[{number}]"
        return RequestError(error.kind, field + error.message.removeprefix("prompt"), field)
