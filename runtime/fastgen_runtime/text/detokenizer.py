"""Token ids into text, a piece at a time, never splitting a character.

Byte-level tokenizers: each token is a run of bytes, so an incremental UTF-8 decoder is exact.
Others (SentencePiece with byte fallback): the text of a window of tokens is decoded anew, and its
growth is the new text; the window begins with the tokens of the piece before.
"""

import codecs
from collections.abc import Collection, Sequence
from typing import Final, Protocol

from tokenizers import Tokenizer, decoders

_REPLACEMENT: Final = "\ufffd"
_MAX_CHARACTER_BYTES: Final = 4


class Detokenizer(Protocol):
    """The text of one answer; special tokens have none."""

    def push(self, token_id: int) -> str:
        """The characters that are whole with this token."""
        ...

    def flush(self) -> str:
        """What was held back, at the answer's end."""
        ...


class Vocabulary:
    """A tokenizer's vocabulary, prepared once for the detokenizers of all requests."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.special_ids = frozenset(
            token_id
            for token_id, token in tokenizer.get_added_tokens_decoder().items()
            if token.special
        )
        self._is_byte_level = isinstance(tokenizer.decoder, decoders.ByteLevel)
        self._bytes: dict[int, bytes] = {}
        # Texts of byte-level tokens that begin and end between two characters, as they are met.
        self.whole_texts: dict[int, str] = {}

    def detokenizer(self, shown_ids: Collection[int] = ()) -> Detokenizer:
        """A detokenizer for one answer. shown_ids: special tokens that have a text in it."""
        plain = ByteLevelDetokenizer(self) if self._is_byte_level else WindowDetokenizer(self)
        return ShowingDetokenizer(self, plain, shown_ids) if shown_ids else plain

    def text_of(self, token_ids: Sequence[int]) -> str:
        """The text of all of them; special tokens have none."""
        return self.tokenizer.decode(token_ids, skip_special_tokens=True)

    def bytes_of(self, token_id: int) -> bytes:
        """The bytes of a byte-level token; none for special and unknown ones."""
        known = self._bytes.get(token_id)
        if known is None:
            known = self._bytes[token_id] = self._read_bytes(token_id)
        return known

    def _read_bytes(self, token_id: int) -> bytes:
        token = None if token_id in self.special_ids else self.tokenizer.id_to_token(token_id)
        if token is None:
            return b""
        try:
            return bytes(BYTE_OF_CHARACTER[character] for character in token)
        except KeyError:  # an added token, written as it is
            return token.encode()


class ByteLevelDetokenizer:
    """Exact for byte-level tokenizers; bytes that are no UTF-8 become U+FFFD."""

    __slots__ = ("_decoder", "_is_inside", "_vocabulary")

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._is_inside = False
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        vocabulary, was_inside = self._vocabulary, self._is_inside
        if not was_inside and (known := vocabulary.whole_texts.get(token_id)) is not None:
            return known
        text = self._decoder.decode(vocabulary.bytes_of(token_id))
        self._is_inside = bool(self._decoder.getstate()[0])
        if not was_inside and not self._is_inside:
            vocabulary.whole_texts[token_id] = text
        return text

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


class WindowDetokenizer:
    """For tokenizers whose tokens' texts depend on their neighbours."""

    __slots__ = ("_context", "_new", "_num_broken", "_said", "_tokenizer")

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._tokenizer = vocabulary.tokenizer
        self._context: list[int] = []
        self._said = ""
        self._new: list[int] = []
        self._num_broken = 0

    def push(self, token_id: int) -> str:
        self._new.append(token_id)
        text = self._decode(self._context + self._new)
        # A character may still be under way; it has at most four bytes, hence tokens.
        if text.endswith(_REPLACEMENT) and self._num_broken < _MAX_CHARACTER_BYTES - 1:
            self._num_broken += 1
            return ""
        return self._say(text)

    def flush(self) -> str:
        return self._say(self._decode(self._context + self._new))

    def _say(self, text: str) -> str:
        self._num_broken = 0
        piece = text[len(self._said) :]
        if piece:
            # The next tokens are read beside these: tokenizers drop a space at the beginning.
            self._context, self._new = self._new, []
            self._said = self._decode(self._context)
        return piece

    def _decode(self, token_ids: Sequence[int]) -> str:
        return self._tokenizer.decode(list(token_ids), skip_special_tokens=True)


class ShowingDetokenizer:
    """Writes out some special tokens; around them the text is as it is without."""

    __slots__ = ("_plain", "_shown", "_vocabulary")

    def __init__(
        self, vocabulary: Vocabulary, plain: Detokenizer, shown_ids: Collection[int]
    ) -> None:
        self._vocabulary = vocabulary
        self._plain = plain
        self._shown = frozenset(shown_ids) & vocabulary.special_ids

    def push(self, token_id: int) -> str:
        if token_id not in self._shown:
            return self._plain.push(token_id)
        return self._plain.flush() + (self._vocabulary.tokenizer.id_to_token(token_id) or "")

    def flush(self) -> str:
        return self._plain.flush()


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's characters for bytes: printable ones stand for themselves, others follow U+0100."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    alphabet = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(0x100) if byte not in printable]
    return alphabet | {chr(0x100 + i): byte for i, byte in enumerate(others)}


BYTE_OF_CHARACTER: Final = _byte_alphabet()
