"""A tokenizer of a byte a token and a few longer ones, and what grammars allow of it."""

import numpy as np
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from fastgen_runtime.engine.grammar import GrammarConstraint

WORDS = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "ab", "abc", "<end>", "<stop>"]
AB, ABC, END, STOP = range(len(WORDS) - 4, len(WORDS))


def byte_tokenizer() -> Tokenizer:
    vocabulary = {word: number for number, word in enumerate(WORDS[:-2])}
    tokenizer = Tokenizer(BPE(vocabulary, [("a", "b"), ("ab", "c")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(WORDS[-2:])
    return tokenizer


TOKENIZER = byte_tokenizer()


def allowed(constraint: GrammarConstraint) -> set[str]:
    mask = constraint.mask()
    assert mask.dtype == np.int32
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    return {WORDS[token] for token in np.flatnonzero(bits)[: len(WORDS)]}


def feed(constraint: GrammarConstraint, text: str) -> list[bool]:
    ids = TOKENIZER.encode(text).ids
    return [constraint.accept(token) for token in ids]
