"""Batches for the compiled step: prompts as a whole, and in chunks of random requests and sizes."""

import random
from collections.abc import Iterator, Sequence
from typing import Final

import torch
from step_pair import VOCABULARY, Pair, Piece
from torch import Tensor

LENGTH: Final = 150
REQUESTS: Final = 3


def tokens(seed: int, count: int = LENGTH) -> list[int]:
    return random.Random(seed).choices(range(VOCABULARY), k=count)


def shuffled_blocks(pair: Pair, seed: int) -> list[list[int]]:
    """Of each request, enough for LENGTH tokens."""
    each = -(-LENGTH // pair.block_size)
    order = random.Random(seed).sample(range(pair.blocks), each * REQUESTS)
    return [order[each * number : each * (number + 1)] for number in range(REQUESTS)]


def random_steps(seed: int, blocks: Sequence[Sequence[int]]) -> Iterator[list[Piece]]:
    """REQUESTS prompts of LENGTH tokens, in steps of chunks of random requests and sizes."""
    rng = random.Random(seed)
    done = [0] * REQUESTS
    while unfinished := [number for number in range(REQUESTS) if done[number] < LENGTH]:
        pieces = []
        for number in rng.sample(unfinished, rng.randint(1, len(unfinished))):
            size = min(rng.choice([1, 1, 2, rng.randint(1, 90)]), LENGTH - done[number])
            end = done[number] + size
            ids = tokens(number)[done[number] : end]
            pieces.append(Piece(ids, done[number], blocks[number]))
            done[number] = end
        yield pieces


def whole(pair: Pair, blocks: Sequence[Sequence[int]]) -> list[Piece]:
    return [Piece(tokens(number), 0, blocks[number]) for number in range(REQUESTS)]


def by_request(steps: Sequence[Sequence[Piece]], computed: Sequence[Tensor]) -> Tensor:
    """[REQUESTS, LENGTH, hidden] of what the steps brought."""
    rows: list[list[Tensor]] = [[] for _ in range(REQUESTS)]
    for pieces, hidden in zip(steps, computed, strict=True):
        parts = torch.split(hidden, [len(piece.token_ids) for piece in pieces])
        for piece, part in zip(pieces, parts, strict=True):
            number = next(n for n in range(REQUESTS) if tokens(n)[piece.start :][: len(part)]
                          == list(piece.token_ids))  # fmt: skip
            rows[number].append(part)
    return torch.stack([torch.cat(some) for some in rows])
