"""CPU time per token with and without prompt lookup: SmolLM2 sums up texts, and chats.

The same requests with and without it, alternated, on one loaded model. Texts must be the same.
"""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Final

import typer
from engine_models import load_runner

from fastgen_api.spec import Speculation
from fastgen_runtime.device.runner import Runner
from fastgen_runtime.engine.engine import Engine
from fastgen_runtime.engine.plan import Limits
from fastgen_runtime.engine.request import NewRequest
from fastgen_runtime.engine.step import Sampling
from fastgen_runtime.models.checkpoint import Checkpoint, open_checkpoint
from fastgen_runtime.sources.fetch import SMOLLM2, fetch

PAGES: Final = ("engine", "balancing", "scaling", "operating")
"""Of `docs`: what is summed up."""
QUESTIONS: Final = (
    "What is the capital of France?",
    "Write a short poem about the sea.",
    "How do I cook rice?",
    "Explain gravity to a child.",
    "Give me three tips for sleeping better.",
    "Write a Python function that adds two numbers.",
    "Who was Ada Lovelace?",
    "Why is the sky blue?",
)
LENGTHS: Final = (600, 2500)
"""Characters of a text, at least and at most."""
BLOCKS: Final = 1024
GREEDY: Final = Sampling(temperature=0.0)
DRAWN: Final = Sampling(temperature=1.0, seed=7)
WORKLOADS: Final = {
    "summaries": ("summary", GREEDY),
    "chat": ("chat", GREEDY),
    "chat, temperature 1": ("chat", DRAWN),
}


@dataclass(frozen=True, slots=True)
class Cost:
    """What a run took. answer_ms: CPU milliseconds per output token of steps without prompts;
    all_ms: of all steps. steps: without prompts."""

    answer_ms: float
    all_ms: float
    steps: int
    tokens: int
    drafted: int
    accepted: int


def texts() -> Iterator[str]:
    """Paragraphs of this repository's pages, three at a time."""
    docs = Path(__file__).resolve().parents[1] / "docs"
    for page in PAGES:
        paragraphs = [
            " ".join(paragraph.split())
            for paragraph in (docs / f"{page}.md").read_text().split("\n\n")
            if len(paragraph) > 200 and not paragraph.startswith(("|", "```", "#", "<"))
        ]
        for several in zip(*[iter(paragraphs)] * 3, strict=False):
            text = " ".join(several)
            if LENGTHS[0] <= len(text) <= LENGTHS[1]:
                yield text


def prompts(checkpoint: Checkpoint, kind: str, count: int) -> list[list[int]]:
    """Token ids of chats; the template is SmolLM2's."""
    asked = (
        [f"Summarize the following text.\n\n{text}" for text in texts()]
        if kind == "summary"
        else list(QUESTIONS)
    )
    turns = [
        f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
        for question in asked[:count]
    ]
    return [checkpoint.tokenizer.encode(turn).ids for turn in turns]


def run(
    engine: Engine, asked: Sequence[Sequence[int]], clients: int, tokens: int, sampling: Sampling
) -> tuple[Cost, dict[str, list[int]]]:
    """Each client sends one request after the other's answer; what it took, and the answers."""
    answers: dict[str, list[int]] = {}
    waiting = list(enumerate(asked))[::-1]
    in_all = of_answers = 0.0
    count = steps = drafted = accepted = open_requests = 0
    while waiting or open_requests:
        while waiting and open_requests < clients:
            number, prompt = waiting.pop()
            engine.add(NewRequest(str(number), prompt, tokens, sampling))
            answers[str(number)] = []
            open_requests += 1
        begun = time.process_time()
        committed = engine.step().committed
        spent = time.process_time() - begun
        in_all += spent
        if not committed.num_prompt_tokens:
            of_answers += spent
            count += committed.num_output_tokens
            steps += 1
        drafted += committed.num_drafted
        accepted += committed.num_accepted
        for token in committed.tokens:
            answers[token.request_id].append(token.token_id)
            open_requests -= token.finish is not None
    total = sum(map(len, answers.values()))
    cost = Cost(of_answers / count * 1e3, in_all / total * 1e3, steps, count, drafted, accepted)
    return cost, answers


def engine_of(runner: Runner, checkpoint: Checkpoint, speculation: Speculation) -> Engine:
    limits = Limits(512, 64, 64, 4096, prefix_caching=False, speculation=speculation)
    return Engine(runner, limits, checkpoint.eos_token_ids)


def main(
    rounds: Annotated[int, typer.Option(help="of each workload, alternated")] = 3,
    requests: Annotated[int, typer.Option(help="of each workload, up to 8")] = 8,
    tokens: Annotated[int, typer.Option(help="of an answer, at most")] = 160,
    clients: Annotated[str, typer.Option(help="at once, separated by commas")] = "1,4",
    out: Annotated[Path, typer.Option(help="folder for the figures")] = Path("benchmarks/results"),
) -> None:
    checkpoint = open_checkpoint(fetch(SMOLLM2))
    runner = load_runner("smollm2", BLOCKS, 512, 64)
    # They keep what they learn of the machine, as replicas do.
    engines = {kind: engine_of(runner, checkpoint, kind) for kind in Speculation}
    figures = []
    print("workload | clients | without, ms | with, ms | ratio | in all | steps / token | right")
    for name, (kind, sampling) in WORKLOADS.items():
        asked = prompts(checkpoint, kind, requests)
        for count in map(int, clients.split(",")):
            pairs = []
            for _ in range(rounds):
                (without, said), (with_it, also) = (
                    run(engine, asked, count, tokens, sampling) for engine in engines.values()
                )
                if said != also:
                    raise SystemExit(f"{name}: the texts differ")
                pairs.append((without, with_it))
            ratio = median(a.answer_ms / b.answer_ms for a, b in pairs)
            in_all = median(a.all_ms / b.all_ms for a, b in pairs)
            without, with_it = pairs[-1]
            print(
                f"{name} | {count} | {without.answer_ms:.1f} | {with_it.answer_ms:.1f} | "
                f"{ratio:.2f} | {in_all:.2f} | {with_it.steps / without.steps:.2f} | "
                f"{with_it.accepted} of {with_it.drafted}",
                flush=True,
            )
            figures.append(
                {"workload": name, "clients": count, "ratio": ratio, "ratio_in_all": in_all}
                | {"rounds": [[asdict(a), asdict(b)] for a, b in pairs]}
            )
    out.mkdir(parents=True, exist_ok=True)
    (out / "lookup.json").write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    typer.run(main)
