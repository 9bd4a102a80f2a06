"""What an engine answers to prompts that are all asked for at once."""

from typing import Final

from fastgen_runtime.engine.engine import Engine
from fastgen_runtime.engine.request import NewRequest
from fastgen_runtime.engine.step import Sampling
from fastgen_runtime.models.checkpoint import Checkpoint

PROMPTS: Final = (
    "The capital of France is",
    "Once upon a time, in a small village by the sea, there lived an old fisherman who",
    "def fibonacci(n):",
    "Three reasons to learn to cook: first,",
)


def answers_of(
    engine: Engine, checkpoint: Checkpoint, num_tokens: int, sampling: Sampling
) -> list[list[int]]:
    """Tokens of the answers to `PROMPTS`, each so many; the engine's invariants hold after each
    step."""
    answers: dict[str, list[int]] = {}
    for number, prompt in enumerate(PROMPTS):
        token_ids = checkpoint.tokenizer.encode(prompt).ids
        new = NewRequest(str(number), token_ids, num_tokens, sampling, ignore_eos=True)
        assert engine.add(new) is None
        answers[str(number)] = []
    while engine.has_work:
        for token in engine.step().committed.tokens:
            answers[token.request_id].append(token.token_id)
        engine.check()
    return list(answers.values())
