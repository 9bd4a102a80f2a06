"""Builds a tokenizer from a GGUF file's vocabulary, or reads a Hugging Face folder's."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    normalizers,
    pre_tokenizers,
    processors,
)
from tokenizers.models import BPE

from fastgen_runtime.models.model_config import invalid, unsupported

_CONTROL: Final = 3
_USER_DEFINED: Final = 4
"""Token types of the GGUF specification."""


def num_token_ids(tokenizer: Tokenizer) -> int:
    """One more than the highest token id; a model's embedding may have more rows than that."""
    return max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1


def tokenizer_from_gguf(metadata: Mapping[str, Any]) -> Tokenizer:
    """Byte-level BPE from `tokenizer.ggml.*`; raises ModelError."""
    kind, split = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    if kind != "gpt2" or split not in _SPLITS:
        raise unsupported(
            f"the GGUF tokenizer {kind} with pre-tokenizer {split} is not supported; "
            f"supported: gpt2 with {', '.join(sorted(_SPLITS))}; others as Hugging Face folders"
        )
    tokens, merges = metadata.get("tokenizer.ggml.tokens"), metadata.get("tokenizer.ggml.merges")
    if not tokens or merges is None:
        raise invalid("the GGUF file holds no vocabulary: tokenizer.ggml.tokens or merges missing")
    try:
        pairs = [tuple(merge.split(" ", 1)) for merge in merges]
        model = BPE({token: number for number, token in enumerate(tokens)}, pairs, fuse_unk=False)
    except (
        Exception
    ) as error:  # the library raises plain Exception for a merge outside the vocabulary
        raise invalid(f"the GGUF file's merges do not fit its vocabulary: {error}") from error
    splits = _SPLITS[split]
    model.ignore_merges = not splits.merges_vocabulary
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = splits.pre_tokenizer
    if splits.normalizer is not None:
        tokenizer.normalizer = splits.normalizer
    tokenizer.decoder = decoders.ByteLevel()
    _add_special_tokens(tokenizer, tokens, metadata.get("tokenizer.ggml.token_type") or [])
    if metadata.get("tokenizer.ggml.add_bos_token", splits.adds_bos):
        _prepend_bos(tokenizer, tokens, metadata.get("tokenizer.ggml.bos_token_id"))
    return tokenizer


def tokenizer_from_folder(folder: Path) -> Tokenizer:
    """Reads tokenizer.json; raises ModelError."""
    path = folder / "tokenizer.json"
    if not path.exists():
        raise unsupported(
            f"{folder.name} has no tokenizer.json: save the model with its fast tokenizer"
        )
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception
        raise invalid(f"tokenizer.json cannot be read: {error}") from error
    # A stored truncation or padding would silently change prompts.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


@dataclass(frozen=True, slots=True)
class _Splits:
    """What `tokenizer.ggml.pre` stands for.

    merges_vocabulary: false where a piece that is a token stays one whatever the merges say.
    adds_bos: for files that do not say so themselves.
    """

    pre_tokenizer: pre_tokenizers.PreTokenizer
    normalizer: normalizers.Normalizer | None = None
    merges_vocabulary: bool = True
    adds_bos: bool = False


def _split_like_smollm() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )


def _split_by_pattern(digits: str) -> pre_tokenizers.PreTokenizer:
    """Llama 3's pattern; digits: how many stay together, the only thing that varies."""
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
        + digits
        + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


_SPLITS: Final = {
    "smollm": _Splits(_split_like_smollm()),
    "gpt-2": _Splits(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)),
    "llama-bpe": _Splits(_split_by_pattern(r"\p{N}{1,3}"), merges_vocabulary=False, adds_bos=True),
    "qwen2": _Splits(_split_by_pattern(r"\p{N}"), normalizers.NFC()),
}


def _add_special_tokens(tokenizer: Tokenizer, tokens: list[str], types: list[int]) -> None:
    special = [
        AddedToken(token, special=kind == _CONTROL, normalized=False)
        for token, kind in zip(tokens, types, strict=False)
        if kind in (_CONTROL, _USER_DEFINED)
    ]
    tokenizer.add_tokens(special)


def _prepend_bos(tokenizer: Tokenizer, tokens: list[str], bos: int | None) -> None:
    if not isinstance(bos, int) or not 0 <= bos < len(tokens):
        raise invalid(f"the GGUF file adds a first token, but its bos_token_id is {bos}")
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{tokens[bos]} $A", special_tokens=[(tokens[bos], bos)]
    )
