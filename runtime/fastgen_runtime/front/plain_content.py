"""Keeps special tokens that stand in a message's content plain text.

A chat template writes `<|im_end|>` and the like between messages, and the tokenizer cannot tell
those from the same text inside a message, with which a user could end his turn and write the
system's. So each occurrence in a content is disguised before the template is rendered: its first
character is replaced by one that occurs nowhere else. What the tokenizer then takes for special is
the template's; stretches between with a disguised character are tokenized anew, undisguised, by a
tokenizer that knows no special tokens.
"""

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Final

from tokenizers import Encoding, Tokenizer

from fastgen_runtime.front.generation import invalid

_STAND_INS: Final = (range(0xE000, 0xF900), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))
"""Unicode's private use areas."""

Disguise = dict[str, str]
"""What stands in for the first character of each special token; empty when nothing has to."""


class PlainContent:
    """The special tokens of one tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        added = tokenizer.get_added_tokens_decoder()
        self._tokenizer = tokenizer
        self._ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self._texts = sorted({added[token_id].content for token_id in self._ids} - {""})
        # It shares the model, which is most of a tokenizer's memory.
        self._plain = Tokenizer(tokenizer.model)
        self._plain.normalizer = tokenizer.normalizer
        self._plain.pre_tokenizer = tokenizer.pre_tokenizer
        self._plain.add_tokens([added[token_id] for token_id in sorted(added)])
        self._plain.encode_special_tokens = True

    def disguise_for(self, contents: Iterable[str]) -> Disguise:
        """Empty when no content holds a special token's text; raises RequestError."""
        contents = tuple(contents)
        if not any(text in content for content in contents for text in self._texts):
            return {}
        used = set().union(*contents)
        unused = (chr(code) for codes in _STAND_INS for code in codes if chr(code) not in used)
        firsts = {text[0] for text in self._texts}
        disguise = dict(zip(sorted(firsts), unused, strict=False))
        if len(disguise) < len(firsts):
            raise invalid("messages", "hold a special token and too many private characters")
        return disguise

    def disguise(self, content: str, disguise: Disguise) -> str:
        """The content, as long as before, with no special token's text left in it."""
        for text in self._texts if disguise else ():
            # Once more for texts that overlap themselves.
            while text in content:
                content = content.replace(text, disguise[text[0]] + text[1:])
        return content

    def encode(self, rendered: str, disguise: Disguise) -> list[int]:
        """Token ids of a rendered template with disguised contents; raises RequestError."""
        (encoding,) = self._tokenizer.encode_batch([rendered], add_special_tokens=False)
        restored = rendered.translate({ord(one): first for first, one in disguise.items()})
        token_ids: list[int] = []
        for ids, start, end in self._stretches(encoding, len(rendered)):
            if rendered[start:end] == restored[start:end]:
                token_ids += ids
                continue
            (plain,) = self._plain.encode_batch_fast(
                [restored[start:end]], add_special_tokens=False
            )
            if not self._ids.isdisjoint(plain.ids):
                raise invalid("messages", "hold a special token that cannot be told from text")
            token_ids += plain.ids
        return token_ids

    def _stretches(self, encoding: Encoding, length: int) -> Iterator[tuple[list[int], int, int]]:
        """Token ids with the first character and the one behind, special tokens by themselves."""
        ids = encoding.ids
        special = [index for index, token_id in enumerate(ids) if token_id in self._ids]
        character = 0
        for before, index in pairwise([-1, *special, len(ids)]):
            at = encoding.token_to_chars(index) if index < len(ids) else None
            start, end = at or (length, length)
            yield ids[before + 1 : index], character, start
            yield ids[index : index + 1], start, end
            character = end
