"""Pre-tokenizers of GGUF files: the ids are those of transformers' tokenizers of the vocabulary."""

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import Qwen2Tokenizer
from transformers.convert_slow_tokenizer import TikTokenConverter

from fastgen_runtime.models.gguf_file import read_gguf
from fastgen_runtime.text.tokenizer import tokenizer_from_gguf

TEXTS = [
    "Hello, world!",
    "1234567890 and 3.14159, 0x1F, 2024-01-01",
    "  leading, trailing  and   many    spaces   ",
    "tabs\tand\r\nline\nends\n\n  \n x",
    "don't you'll we've I'm SHE'S IT'LL",
    "naïve café cafe\u0301 – “quotes” … ±∞",
    "日本語のテキスト 和 한국어, العربية हिन्दी",
    "emoji 👩‍👩‍👧‍👦 🏳️‍🌈, ½ ² ④ ١٢٣٤ Ⅻ",
    "def f(x):\n    return x**2  # comment!!\n",
    "",
]


@pytest.fixture(scope="module")
def metadata(smollm2_path: Path) -> dict[str, Any]:
    return dict(read_gguf(smollm2_path).metadata) | {"tokenizer.ggml.add_bos_token": False}


def _vocabulary(metadata: dict[str, Any]) -> tuple[dict[str, int], list[tuple[str, str]]]:
    tokens, merges = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.merges"]
    pairs = [tuple(merge.split(" ", 1)) for merge in merges]
    return {token: number for number, token in enumerate(tokens)}, pairs


@pytest.fixture(scope="module")
def qwen2(metadata: dict[str, Any]) -> tuple[Tokenizer, Qwen2Tokenizer]:
    """Ours and theirs."""
    vocabulary, merges = _vocabulary(metadata)
    ours = tokenizer_from_gguf(metadata | {"tokenizer.ggml.pre": "qwen2"})
    return ours, Qwen2Tokenizer(vocabulary, merges)


@pytest.fixture(scope="module")
def llama_bpe(metadata: dict[str, Any]) -> tuple[Tokenizer, Tokenizer]:
    """Ours and theirs; the pattern is that of transformers' converter of Llama 3's own file."""
    vocabulary, merges = _vocabulary(metadata)
    theirs = Tokenizer(BPE(vocabulary, merges, ignore_merges=True))
    split = pre_tokenizers.Split(Regex(TikTokenConverter().pattern), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    theirs.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    theirs.decoder = decoders.ByteLevel()
    return tokenizer_from_gguf(metadata | {"tokenizer.ggml.pre": "llama-bpe"}), theirs


@pytest.mark.parametrize("text", TEXTS)
def test_qwen2(qwen2: tuple[Tokenizer, Qwen2Tokenizer], text: str) -> None:
    ours, theirs = qwen2
    assert ours.encode(text).ids == theirs.encode(text, add_special_tokens=False)


@pytest.mark.parametrize("text", TEXTS)
def test_llama_bpe(llama_bpe: tuple[Tokenizer, Tokenizer], text: str) -> None:
    ours, theirs = llama_bpe
    assert ours.encode(text).ids == theirs.encode(text).ids
    assert ours.decode(ours.encode(text).ids) == text


def test_llama_bpe_puts_its_first_token_where_the_file_does_not_say(
    metadata: dict[str, Any],
) -> None:
    silent = {key: value for key, value in metadata.items() if not key.endswith("add_bos_token")}
    ids = tokenizer_from_gguf(silent | {"tokenizer.ggml.pre": "llama-bpe"}).encode("a").ids
    assert ids[0] == metadata["tokenizer.ggml.bos_token_id"]
    assert len(tokenizer_from_gguf(silent).encode("a").ids) == len(ids) - 1
