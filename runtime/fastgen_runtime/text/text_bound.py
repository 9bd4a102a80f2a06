"""How few tokens a text can have, known before it is tokenized."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from fastgen_runtime.text.detokenizer import BYTE_OF_CHARACTER

_LOSSLESS_SPLITS: Final = {"ByteLevel", "Digits", "Sequence", "Split"}


@dataclass(frozen=True, slots=True)
class TextBound:
    """longest_token_bytes: of text, for one token. lost: bytes that get no token at all."""

    longest_token_bytes: int
    lost: bytes

    def count_bytes(self, texts: Iterable[str]) -> int:
        """UTF-8 bytes of the texts that need a token."""
        encoded = (text.encode(errors="surrogatepass") for text in texts)
        return sum(len(data.translate(None, self.lost)) for data in encoded)


def text_bound(tokenizer: Tokenizer) -> TextBound | None:
    """None for tokenizers that may leave out text, so that a long one may have few tokens.

    Byte-level tokenizers leave out only what has no token, unless they normalize the text, drop
    parts of it as they split it, or have added tokens that swallow the blanks around them.
    """
    added = tokenizer.get_added_tokens_decoder().values()
    is_bounded = (
        tokenizer.normalizer is None
        and isinstance(tokenizer.model, models.BPE)
        and isinstance(tokenizer.decoder, decoders.ByteLevel)
        and _drops_nothing(tokenizer.pre_tokenizer)
        and not any(token.lstrip or token.rstrip for token in added)
    )
    if not is_bounded:
        return None
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    # A character of the vocabulary is a byte; added tokens are plain text.
    longest_added = max((len(token.content.encode()) for token in added), default=0)
    return TextBound(
        longest_token_bytes=max(longest_added, *map(len, vocabulary)),
        lost=bytes(byte for char, byte in BYTE_OF_CHARACTER.items() if char not in vocabulary),
    )


def _drops_nothing(splits: pre_tokenizers.PreTokenizer | None) -> bool:
    def check(split: dict[str, Any]) -> bool:
        is_known = split["type"] in _LOSSLESS_SPLITS and split.get("behavior") != "Removed"
        return is_known and all(map(check, split.get("pretokenizers", [])))

    return splits is not None and check(json.loads(splits.__getstate__()))
