"""The tokenizer built from GGUF metadata is transformers'; so is the chat template's text."""

from pathlib import Path

import pytest
from greedy_reference import reference_tokenizer
from transformers import PreTrainedTokenizerFast

from fastgen_runtime.models.checkpoint import Checkpoint, open_checkpoint

TEXTS = [
    "Hello, world!",
    "1234567890 and 3.14159, 0x1F, 2024-01-01",
    "  leading, trailing  and   many    spaces   ",
    "   5 spaces then digits   42\n\n\n\t7",
    "tabs\tand\r\nline\nends\n\n",
    "don't you'll we've I'm SHE'S",
    "naïve café – “quotes” … ±∞",
    "日本語のテキスト 和 한국어, العربية עברית हिन्दी",
    "emoji 👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪 🤷🏽",
    "½ ² ④ ١٢٣ 五 Ⅻ",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "not special: <|im_start| >, <im_end>, <|endoftext|><|endoftext|>",
    "def f(x):\n    return x**2  # comment\n",
    "\u0000\u0001\x7f zero\u200bwidth\ufeff",
    "a" * 300,
    "",
]


@pytest.fixture(scope="module")
def checkpoint(smollm2_path: Path) -> Checkpoint:
    return open_checkpoint(smollm2_path)


@pytest.fixture(scope="module")
def reference(smollm2_path: Path) -> PreTrainedTokenizerFast:
    return reference_tokenizer(smollm2_path)


@pytest.mark.parametrize("text", TEXTS)
def test_ids_and_text(
    checkpoint: Checkpoint, reference: PreTrainedTokenizerFast, text: str
) -> None:
    ids = checkpoint.tokenizer.encode(text).ids
    assert ids == reference(text)["input_ids"]
    assert checkpoint.tokenizer.decode(ids, skip_special_tokens=False) == text


def test_digits_are_split(checkpoint: Checkpoint) -> None:
    """Which `tokenizer.ggml.pre` asks for: no token holds two digits or a digit and a space."""
    tokens = checkpoint.tokenizer.encode("in 2024   7").tokens
    assert tokens == ["in", "Ġ", "2", "0", "2", "4", "ĠĠĠ", "7"]


def test_special_tokens(checkpoint: Checkpoint, reference: PreTrainedTokenizerFast) -> None:
    assert checkpoint.eos_token_ids == {reference.eos_token_id} == {2}
    assert checkpoint.special_tokens["bos_token"] == reference.bos_token == "<|im_start|>"
    assert checkpoint.tokenizer.decode([1, 2, 104]) == reference.decode([104])


def test_chat_template(checkpoint: Checkpoint, reference: PreTrainedTokenizerFast) -> None:
    messages = [
        {"role": "user", "content": "Hi {{ 7 * 7 }}"},
        {"role": "assistant", "content": "Hello!\n"},
        {"role": "user", "content": "What is 2 + 2?"},
    ]
    assert checkpoint.chat_template is not None
    for asks_for_answer in (True, False):
        ours = checkpoint.chat_template.render(messages, {"add_generation_prompt": asks_for_answer})
        theirs = reference.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=asks_for_answer
        )
        assert ours == theirs
