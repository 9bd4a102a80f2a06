"""What transformers makes of SmolLM2: the texts and logits that ours are compared with."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from unittest.mock import patch

import gguf
import torch
from tokenizers import pre_tokenizers
from transformers import (
    AutoTokenizer,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)
from transformers.initialization import no_init_weights
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

PROMPTS = (
    "The sun rises in the east because",
    "Water boils at 100 degrees Celsius because",
    "def fibonacci(n):\n    ",
    "Three reasons to learn to cook:\n1.",
    "Once upon a time, in a small village by the sea, there lived an old fisherman who",
)

# transformers reads the file three times, and makes the table of names once for every module: a
# minute of computing, for what is the same each time.
_read_once = patch.multiple(
    gguf, GGUFReader=cache(gguf.GGUFReader), get_tensor_name_map=cache(gguf.get_tensor_name_map)
)


@cache
@_read_once
def reference_model(path: Path) -> LlamaForCausalLM:
    """transformers' own reading of the GGUF file, float32 on the CPU.

    `from_pretrained` wants accelerate for GGUF files; the functions beneath it do not.
    """
    torch.set_num_threads(1)  # two threads that spin are slower when anything else runs
    config = LlamaConfig(**load_gguf_checkpoint(str(path))["config"])
    with no_init_weights():
        model = LlamaForCausalLM(config)
    read = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)
    missing, unexpected = model.load_state_dict(read["tensors"], strict=False)
    assert missing == ["lm_head.weight"]
    assert not unexpected
    model.tie_weights()
    # Else `generate` would stop where a test asks it to go on.
    model.generation_config.eos_token_id = None
    model.float()
    model.eval()
    return model


@cache
@_read_once
def reference_tokenizer(path: Path) -> PreTrainedTokenizerFast:
    """transformers' tokenizer from the GGUF file, with the pre-tokenizer that the file names.

    transformers ignores `tokenizer.ggml.pre`, smollm: digits one by one, as in the tokenizer.json
    that the model was published with.
    """
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    assert isinstance(tokenizer, PreTrainedTokenizerFast)
    backend = tokenizer.backend_tokenizer
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), backend.pre_tokenizer]
    )
    return tokenizer


def greedy_ids(
    model: LlamaForCausalLM, prompt: Sequence[int], num_tokens: int, eos: Sequence[int] = ()
) -> list[int]:
    """Up to `num_tokens` greedy tokens; an end token is not among them."""
    config = GenerationConfig(
        do_sample=False,
        max_new_tokens=num_tokens,
        eos_token_id=list(eos) or None,
        pad_token_id=0,
    )
    inputs = torch.tensor([prompt])
    with torch.inference_mode():
        output = model.generate(
            inputs, attention_mask=torch.ones_like(inputs), generation_config=config
        )
    ids: list[int] = output[0, len(prompt) :].tolist()
    return ids[:-1] if ids[-1] in eos else ids


def greedy_texts(path: Path, prompts: Sequence[str], num_tokens: int) -> list[str]:
    """Greedy continuation of each plain prompt, at most `num_tokens` tokens."""
    model, tokenizer = reference_model(path), reference_tokenizer(path)
    texts = []
    for prompt in prompts:
        prompt_ids = tokenizer(prompt)["input_ids"]
        ids = greedy_ids(model, prompt_ids, num_tokens, [tokenizer.eos_token_id])
        text = tokenizer.decode(ids, skip_special_tokens=True)
        assert isinstance(text, str), "one sequence has one text"
        texts.append(text)
    return texts
