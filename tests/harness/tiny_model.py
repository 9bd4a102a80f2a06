"""A tiny random Llama as a Hugging Face folder: config, byte-level tokenizer, safetensors."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 257,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "eos_token_id": 256,
}


def write_tiny_model(folder: Path, num_shards: int = 2, **changes: Any) -> Path:
    """Writes the folder; `changes` are those of config.json. num_shards 0: no weights."""
    folder.mkdir(parents=True, exist_ok=True)
    config = CONFIG | changes
    (folder / "config.json").write_text(json.dumps(config))
    _write_tokenizer(folder)
    if num_shards == 0:
        return folder
    tensors = random_tensors(config)
    names = sorted(tensors)
    if num_shards == 1:
        save_file(tensors, folder / "model.safetensors")
        return folder
    weight_map: dict[str, str] = {}
    for number in range(num_shards):
        file = f"model-{number + 1:05}-of-{num_shards:05}.safetensors"
        part = {name: tensors[name] for name in names[number::num_shards]}
        save_file(part, folder / file)
        weight_map |= dict.fromkeys(part, file)
    index = json.dumps({"metadata": {}, "weight_map": weight_map})
    (folder / "model.safetensors.index.json").write_text(index)
    return folder


def tensor_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Every tensor of an untied Llama without biases."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    keys = hidden // config["num_attention_heads"] * config["num_key_value_heads"]
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (config["vocab_size"], hidden),
    }
    for number in range(config["num_hidden_layers"]):
        layer = {
            "input_layernorm": (hidden,),
            "post_attention_layernorm": (hidden,),
            "self_attn.q_proj": (hidden, hidden),
            "self_attn.k_proj": (keys, hidden),
            "self_attn.v_proj": (keys, hidden),
            "self_attn.o_proj": (hidden, hidden),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }
        shapes |= {f"model.layers.{number}.{name}.weight": shape for name, shape in layer.items()}
    return shapes


def random_tensors(config: dict[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """Small float32 values."""
    rng = np.random.default_rng(0)
    return {
        name: rng.standard_normal(shape, np.float32) * np.float32(0.2)
        for name, shape in tensor_shapes(config).items()
    }


def _write_tokenizer(folder: Path) -> None:
    """A token for each byte, and `</s>`."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({char: number for number, char in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["</s>"])
    tokenizer.save(str(folder / "tokenizer.json"))
