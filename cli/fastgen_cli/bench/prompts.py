"""Prompts of an asked number of tokens, no two of which begin alike."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, Protocol

Prompt = str | tuple[int, ...]
"""A text, or token ids."""
Count = Callable[[str], Awaitable[int]]
"""Tokens of a prompt as the model sees it, with what its chat template adds."""

HEADER: Final = "Tell a long story about:"
WORDS: Final = (
    *("river", "stone", "market", "lamp", "garden", "letter", "window", "winter", "summer"),
    *("engine", "bridge", "teacher", "forest", "village", "silver", "doctor", "music", "paper"),
    *("house", "water", "light", "mountain", "road", "ship", "bread", "table", "clock", "fire"),
    *("school", "horse", "bird", "tree", "field", "island", "king", "queen", "moon", "star"),
    *("book", "city", "door", "glass", "green", "blue", "white", "black", "small", "large"),
)
"""Words that most vocabularies know as one token each, with the space before them."""
_REPEATS: Final = 8


class Prompts(Protocol):
    """Makes prompts."""

    def make(self, tokens: int, rng: Random) -> Prompt:
        """A prompt of so many tokens, or of the fewest that there can be."""
        ...


@dataclass(frozen=True, slots=True)
class IdPrompts:
    """Token ids from a range that holds no special ones: as long as asked, to the token."""

    least_id: int
    most_id: int

    def make(self, tokens: int, rng: Random) -> tuple[int, ...]:
        return tuple(rng.randint(self.least_id, self.most_id) for _ in range(tokens))


@dataclass(frozen=True, slots=True)
class TextPrompts:
    """Words after a header. base_tokens: of the header, with what a chat template adds.

    tokens_per_word: one where the vocabulary knows each word, and lengths are exact then.
    """

    base_tokens: int
    words: tuple[str, ...] = WORDS
    tokens_per_word: float = 1.0

    @property
    def is_exact(self) -> bool:
        return self.tokens_per_word == 1

    def make(self, tokens: int, rng: Random) -> str:
        count = max(1, round((tokens - self.base_tokens) / self.tokens_per_word))
        return text_of(rng.choice(self.words) for _ in range(count))


def text_of(words: Iterable[str]) -> str:
    """The header and the words."""
    return " ".join((HEADER, *words))


async def calibrate(count: Count, words: Sequence[str] = WORDS) -> TextPrompts:
    """Learns from counts of a few texts how to make prompts of any length.

    A word more costs at least a token: so where all words more cost as many tokens as they are,
    each is one token, and the rest is the header's. Else each word is tried alone, and those that
    are no single token are left out; if no word is one, lengths are right on average only.
    """
    once, twice = await count(text_of(words)), await count(text_of([*words, *words]))
    if twice - once == len(words):
        return TextPrompts(once - len(words), tuple(words))
    single = [
        word
        for word in words
        if await count(text_of([*words, *[word] * _REPEATS])) - once == _REPEATS
    ]
    if len(single) > 1:
        return TextPrompts(await count(text_of(single)) - len(single), tuple(single))
    per_word = max(1e-3, (twice - once) / len(words))
    return TextPrompts(round(once - per_word * len(words)), tuple(words), per_word)
