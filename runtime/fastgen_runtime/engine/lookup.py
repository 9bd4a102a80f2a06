"""Guesses how an answer goes on: as the text did the last time that it read as it does now.

Prompt lookup (Saxena, "Prompt Lookup Decoding", 2023): answers that repeat their prompt, or
themselves, need no second model to be guessed. A guess is checked by the step that computes it
(Leviathan et al., arXiv 2211.17192): a token counts only if it is the one that would have been
drawn without the guess, so guesses change no text.
"""

import sys
from collections.abc import Sequence
from typing import Final

import numpy as np

MOST_GUESSED: Final = 8
"""Tokens of a guess: further ones are seldom reached."""
_LENGTHS: Final = (3, 2)
"""How many last tokens must have been there before; one says little about the next."""
_KEPT: Final = 0.9
"""What the estimate keeps at each new guess: some ten of them count."""


class Lookup:
    """A request's text and how good guesses from it were.

    `guess` and `note` alternate. Whether a guess is used or not, what comes shows whether it was
    right, so it costs nothing to know when guesses begin to be worth their while.
    """

    __slots__ = ("_guess", "_hits", "_text", "_trials")

    def __init__(self) -> None:
        # A character for each token: a search in bytes would find parts of neighbours, too.
        self._text = ""
        self._guess: tuple[int, ...] = ()
        # As if one of two had been right.
        self._hits, self._trials = 0.5, 1.0

    @property
    def acceptance(self) -> float:
        """How likely a guessed token is right, if those before it are; between 0 and 1."""
        return self._hits / self._trials

    def guess(self, token_ids: Sequence[int]) -> tuple[int, ...]:
        """Up to MOST_GUESSED next tokens; none where the last ones are new.

        token_ids: the request's, each time with what came since at their end.
        """
        self._text += _characters(token_ids[len(self._text) :])
        self._guess = ()
        for length in _LENGTHS:
            begin = self._find(length)
            if begin is not None:
                followed = list(token_ids[begin : begin + MOST_GUESSED])
                period = len(token_ids) - begin
                # A text that repeats itself goes on with what is being guessed.
                while len(followed) < MOST_GUESSED:
                    followed.append(followed[len(followed) - period])
                self._guess = tuple(followed)
                break
        return self._guess

    def note(self, token_ids: Sequence[int]) -> None:
        """What came after the last guess: at least one token."""
        if not self._guess:
            return
        self._hits *= _KEPT
        self._trials *= _KEPT
        for guessed, came in zip(self._guess, token_ids, strict=False):
            self._trials += 1
            if guessed != came:
                break
            self._hits += 1
        self._guess = ()

    def _find(self, length: int) -> int | None:
        """Where the last `length` tokens were followed by others, most recently: an index."""
        text = self._text
        if len(text) <= length:
            return None
        at = text.rfind(text[-length:], 0, len(text) - 1)
        return None if at < 0 else at + length


def _characters(token_ids: Sequence[int]) -> str:
    """One for each; tokens that are as far apart as there are characters share theirs."""
    codes = np.array(token_ids, "<u4") % (sys.maxunicode + 1)
    return codes.tobytes().decode("utf-32-le", "surrogatepass")


def num_right(guessed: Sequence[int], drawn: Sequence[int]) -> int:
    """How many guesses from the first on are what was drawn."""
    for number, (guess, token) in enumerate(zip(guessed, drawn, strict=False)):
        if guess != token:
            return number
    return min(len(guessed), len(drawn))
