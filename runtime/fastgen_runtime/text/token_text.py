"""What single tokens are, as text and as bytes: log probabilities name them one by one."""

import re
from typing import Final

from tokenizers import Tokenizer, decoders

from fastgen_runtime.text.detokenizer import BYTE_OF_CHARACTER

_BYTE_TOKEN: Final = re.compile(r"<0x([0-9A-F]{2})>")
_BLANK: Final = "\u2581"
"""SentencePiece's sign for a space."""


class TokenTexts:
    """A tokenizer's tokens, remembered as they are asked for."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._is_byte_level = isinstance(tokenizer.decoder, decoders.ByteLevel)
        self._added = tokenizer.get_added_tokens_decoder()
        self._known: dict[int, tuple[str, bytes]] = {}

    def text_of(self, token_id: int) -> str:
        """Its text; `bytes:\\xe2\\x80` where it is part of a character, as OpenAI writes it."""
        return self._of(token_id)[0]

    def bytes_of(self, token_id: int) -> bytes:
        """Its UTF-8, or its share of it; of special tokens their name's."""
        return self._of(token_id)[1]

    def is_special(self, token_id: int) -> bool:
        """Whether it has no text in an answer."""
        return token_id in self._added and bool(self._added[token_id].special)

    def _of(self, token_id: int) -> tuple[str, bytes]:
        known = self._known.get(token_id)
        if known is None:
            data = self._read(token_id)
            try:
                text = data.decode()
            except UnicodeDecodeError:
                text = "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
            known = self._known[token_id] = text, data
        return known

    def _read(self, token_id: int) -> bytes:
        token = self._tokenizer.id_to_token(token_id)
        if token is None:
            return b""
        if token_id in self._added:
            return token.encode()
        if self._is_byte_level:
            return bytes(BYTE_OF_CHARACTER.get(character, 0x3F) for character in token)
        if byte := _BYTE_TOKEN.fullmatch(token):
            return bytes([int(byte.group(1), 16)])
        return token.replace(_BLANK, " ").encode()
