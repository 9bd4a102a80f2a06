"""What the engines are asked: decoding, a mixture, a long prompt among streams, one stream.

Prompts are random token ids, so that no two begin alike; all is greedy and of given length.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from random import Random
from typing import Final

from fastgen_cli.bench.lengths import Normal, drawer
from peers.protocol import Request

TOKEN_IDS: Final = (20, 49_000)
"""SmolLM2's from the first ordinary one on."""
_LENGTHS_SEED: Final = 650


class Name(StrEnum):
    """The workloads."""

    DECODE = "W1"
    """16 requests at once, 128 tokens in, 128 out."""
    MIXTURE = "W2"
    """16 requests at once, prompts of N(650, 30 %) and answers of N(32, 30 %) tokens."""
    STALL = "W3"
    """8 streams, 64 in, 600 out; at 2 s a prompt of 4,000 tokens arrives."""
    SINGLE = "W4"
    """One stream, 512 in, 64 out, four times in a row."""


@dataclass(frozen=True, slots=True)
class Workload:
    """parts: lists of requests that follow one another, each when all before it have ended."""

    name: Name
    parts: tuple[tuple[Request, ...], ...]

    @property
    def requests(self) -> tuple[Request, ...]:
        """All requests, in the order of their parts."""
        return tuple(request for part in self.parts for request in part)


def workload(name: Name, seed: int, scale: float = 1.0) -> Workload:
    """A workload; lengths are the same for every seed, token ids are not.

    scale: of all lengths and arrivals; below 1 for a first look.
    """
    rng = Random(f"{name} {seed}")

    def request(prompt: float, output: float, at: float = 0.0) -> Request:
        ids = [rng.randrange(*TOKEN_IDS) for _ in range(max(1, round(prompt * scale)))]
        return Request(ids, max(2, round(output * scale)), at * scale)

    match name:
        case Name.DECODE:
            return Workload(name, (tuple(request(128, 128) for _ in range(16)),))
        case Name.MIXTURE:
            return Workload(name, (tuple(request(*lengths) for lengths in mixture_lengths()),))
        case Name.STALL:
            streams = [request(64, 600) for _ in range(8)]
            return Workload(name, ((*streams, request(4000, 2 / scale, 2.0)),))
        case Name.SINGLE:
            return Workload(name, tuple((request(512, 64),) for _ in range(4)))


def mixture_lengths(count: int = 16) -> list[tuple[int, int]]:
    """Tokens of prompts and answers of W2, after the DeepSpeed-FastGen paper (arXiv 2401.08671,
    section 4: normal, deviation 30 % of the mean)."""
    rng = Random(_LENGTHS_SEED)
    prompt, answer = (drawer(Normal(mean, 0.3), rng) for mean in (650, 32))
    return [(prompt(), answer()) for _ in range(count)]


def warm_up(whole: Workload, most_prompt: int = 512, most_output: int = 8) -> Workload:
    """The same requests, cut short, all at once: what an engine prepares on first use is made."""
    cut = [
        replace(request, prompt=request.prompt[:most_prompt], at=0.0,
                output=min(request.output, most_output))
        for request in whole.parts[0]
    ]  # fmt: skip
    return Workload(whole.name, (tuple(cut),))


def longest_total(whole: Workload) -> int:
    """Tokens of the longest request, prompt and answer."""
    return max(len(request.prompt) + request.output for request in whole.requests)
