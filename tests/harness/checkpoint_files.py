"""Writes small GGUF files and folders, and reads what others made of them."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from fastgen_runtime.models.checkpoint import open_checkpoint
from fastgen_runtime.startup_error import ModelError

TOKENS = ["<|endoftext|>", "<|im_end|>", "<think>", "a", "b", "Ġ", "ab", "1"]
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 8,
    "max_position_embeddings": 128,
    "eos_token_id": 1,
}


def write_gguf(path: Path, **changes: Any) -> np.ndarray[Any, Any]:
    """A one-layer file with a few tensors; returns the query weights as transformers has them."""
    writer = gguf.GGUFWriter(path, changes.pop("architecture", "llama"))
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(96)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(changes.pop("split", "smollm"))
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3, 4, 1, 1, 1, 1, 1])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_add_bos_token(changes.pop("add_bos", False))
    query = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    # As llama.cpp's converter does it: the halves of each head become neighbours.
    interleaved = query.reshape(4, 2, 8, 64).swapaxes(1, 2).reshape(64, 64)
    writer.add_tensor("blk.0.attn_q.weight", interleaved)
    quantized = gguf.quants.quantize(query, gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("blk.0.ffn_down.weight", quantized, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    for name, values in changes.pop("tensors", {}).items():
        writer.add_tensor(name, values)
    assert not changes
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return query


def write_folder(folder: Path, config: dict[str, Any], **files: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def failure(path: Path) -> ModelError:
    with pytest.raises(ModelError) as raised:
        read_all(path)
    return raised.value


def read_all(path: Path) -> None:
    checkpoint = open_checkpoint(path)
    for tensor in checkpoint.tensors().values():
        tensor.read()
    checkpoint.tokenizer.encode("ab")
