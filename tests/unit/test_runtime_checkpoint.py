"""Checkpoints: small GGUF files and folders that the test writes, whole and damaged."""

import contextlib
import json
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from fastgen_api.names import StartupFailure
from fastgen_runtime.checkpoint import open_checkpoint
from fastgen_runtime.model_config import RopeKind, RopeScaling
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


def test_gguf_configuration(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf")
    checkpoint = open_checkpoint(tmp_path / "m.gguf")
    config = checkpoint.config
    assert (config.num_layers, config.hidden_size, config.intermediate_size) == (1, 64, 96)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (4, 2, 16)
    assert (config.vocab_size, config.max_positions, config.rope_theta) == (8, 128, 10000.0)
    assert config.rope_scaling == RopeScaling()
    assert config.tied_embeddings
    assert checkpoint.eos_token_ids == {1}
    assert checkpoint.special_tokens == {"bos_token": TOKENS[0], "eos_token": TOKENS[1]}
    assert checkpoint.chat_template is None


def test_gguf_tensors(tmp_path: Path) -> None:
    query = write_gguf(tmp_path / "m.gguf")
    tensors = open_checkpoint(tmp_path / "m.gguf").tensors()
    assert set(tensors) == {
        "model.layers.0.self_attn.q_proj.weight",
        "model.layers.0.mlp.down_proj.weight",
    }
    assert np.array_equal(tensors["model.layers.0.self_attn.q_proj.weight"].read(), query)
    quantized = tensors["model.layers.0.mlp.down_proj.weight"].read()
    np.testing.assert_allclose(quantized, query, atol=0.02)


def test_gguf_rope_factors(tmp_path: Path) -> None:
    factors = np.linspace(1, 8, 8, dtype=np.float32)
    write_gguf(tmp_path / "m.gguf", tensors={"rope_freqs.weight": factors})
    checkpoint = open_checkpoint(tmp_path / "m.gguf")
    assert checkpoint.config.rope_scaling.kind is RopeKind.FACTORS
    assert checkpoint.config.rope_scaling.factors == tuple(factors.tolist())
    assert "rope_freqs.weight" not in checkpoint.tensors()


def test_gguf_tokenizer(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf")
    tokenizer = open_checkpoint(tmp_path / "m.gguf").tokenizer
    ids = tokenizer.encode("ab 11<think><|im_end|>").ids
    assert ids == [6, 5, 7, 7, 2, 1]
    assert tokenizer.decode(ids) == "ab 11<think>"


def test_gguf_that_wants_a_first_token(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", add_bos=True)
    tokenizer = open_checkpoint(tmp_path / "m.gguf").tokenizer
    assert tokenizer.encode("a").ids == [0, 3]
    assert tokenizer.encode("a", add_special_tokens=False).ids == [3]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architecture": "mamba"}, "architecture mamba is not supported; supported: llama"),
        ({"split": "tekken"}, "pre-tokenizer tekken .* supported: gpt2 with gpt-2, smollm"),
        ({"tensors": {"blk.0.ssm_a": np.ones(4, np.float32)}}, "ssm_a belongs to no Llama"),
    ],
)
def test_gguf_that_is_not_supported(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    write_gguf(tmp_path / "m.gguf", **changes)
    error = failure(tmp_path / "m.gguf")
    assert error.reason is StartupFailure.MODEL_UNSUPPORTED
    assert re.search(words, str(error))


def test_every_truncation_is_told(tmp_path: Path) -> None:
    """At each length, header or data: ModelInvalid, nothing else."""
    write_gguf(tmp_path / "m.gguf")
    whole = (tmp_path / "m.gguf").read_bytes()
    for length in [*range(0, 1200, 7), *range(1200, len(whole), 997), len(whole) - 1]:
        (tmp_path / "cut.gguf").write_bytes(whole[:length])
        assert failure(tmp_path / "cut.gguf").reason is StartupFailure.MODEL_INVALID, length


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_flipped_bytes_never_crash(tmp_path: Path, data: st.DataObject) -> None:
    """A damaged header is a model error or reads as something else; never another exception."""
    path = tmp_path / "m.gguf"
    if not path.exists():
        write_gguf(path)
    damaged = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, 1300))] = data.draw(st.integers(0, 255))
    (tmp_path / "bad.gguf").write_bytes(damaged)
    with contextlib.suppress(ModelError):
        read_all(tmp_path / "bad.gguf")


def test_folder(tmp_path: Path) -> None:
    folder = write_folder(
        tmp_path,
        CONFIG | {"rope_scaling": {"type": "linear", "factor": 2.0}, "bos_token_id": 3},
        generation_config={"eos_token_id": [1, 5], "temperature": 0.6, "top_p": 0.9},
        tokenizer_config={
            "bos_token": {"content": "<s>"},
            "eos_token": "</s>",
            "pad_token": None,
            "chat_template": "{{ bos_token }}!",
        },
    )
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    save_file({"a": values, "b.rotary_emb.inv_freq": values}, folder / "model.safetensors")
    checkpoint = open_checkpoint(folder)
    assert checkpoint.config.rope_scaling == RopeScaling(RopeKind.LINEAR, 2.0)
    assert checkpoint.config.head_dim == 16
    assert not checkpoint.config.tied_embeddings
    assert checkpoint.eos_token_ids == {1, 5}
    assert checkpoint.bos_token_id == 3
    assert checkpoint.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}
    assert (checkpoint.generation_defaults.temperature, checkpoint.generation_defaults.top_p) == (
        0.6,
        0.9,
    )
    assert checkpoint.chat_template is not None
    assert checkpoint.chat_template.render([]) == "<s>!"
    assert list(checkpoint.tensors()) == ["a"]
    assert np.array_equal(checkpoint.tensors()["a"].read(), values)


def test_the_template_file_wins(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, CONFIG, tokenizer_config={"chat_template": "old"})
    (folder / "chat_template.jinja").write_text("new")
    assert open_checkpoint(folder).chat_template_text == "new"


def test_bfloat16_and_shards(tmp_path: Path) -> None:
    """bfloat16 is the upper half of a float32; numpy cannot say so, hence bytes by hand."""
    folder = write_folder(tmp_path, CONFIG)
    values = np.array([1.5, -2.0, 3.0e38, 0.0], np.float32)
    halves = (values.view(np.uint32) >> 16).astype("<u2").tobytes()
    header = json.dumps({"w": {"dtype": "BF16", "shape": [4], "data_offsets": [0, 8]}}).encode()
    (folder / "one.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + halves)
    save_file({"v": values[:2].astype(np.float16)}, folder / "two.safetensors")
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"w": "one.safetensors", "v": "two.safetensors"}})
    )
    tensors = open_checkpoint(folder).tensors()
    np.testing.assert_allclose(tensors["w"].read(), values, rtol=0.01)
    assert tensors["w"].read().dtype == np.float32
    assert tensors["v"].read().tolist() == [1.5, -2.0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "MambaForCausalLM is not supported; supported: "),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2}}, "rope scaling yarn"),
        ({"quantization_config": {"quant_method": "awq"}}, "awq"),
    ],
)
def test_folder_that_is_not_supported(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    error = failure(write_folder(tmp_path, CONFIG | changes))
    assert error.reason is StartupFailure.MODEL_UNSUPPORTED
    assert words in str(error)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_size": "big"}, "hidden_size is 'big'"),
        ({"num_hidden_layers": 0}, "num_layers is 0"),
        ({"num_key_value_heads": 3}, "4 heads are no multiple of its 3"),
        ({"head_dim": 7}, "head_dim is 7"),
        ({"vocab_size": None}, "vocab_size"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 2}}, "low_freq_factor"),
        ({"rope_scaling": "yarn"}, "rope_scaling is 'yarn'"),
        ({"quantization_config": "awq"}, "quantization_config is 'awq'"),
        ({"architectures": 7}, "architectures is 7"),
        ({"eos_token_id": "</s>"}, "eos_token_id is '</s>'"),
        ({"eos_token_id": [1, 2.5]}, "eos_token_id is [1, 2.5]"),
        ({"rms_norm_eps": True}, "rms_norm_eps is True"),
    ],
)
def test_folder_that_contradicts_itself(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    error = failure(write_folder(tmp_path, CONFIG | changes))
    assert error.reason is StartupFailure.MODEL_INVALID
    assert words in str(error)


@pytest.mark.parametrize(
    ("files", "reason", "words"),
    [
        ({}, StartupFailure.MODEL_INVALID, "no *.safetensors"),
        ({"pytorch_model.bin": b"x"}, StartupFailure.MODEL_UNSUPPORTED, "pickled"),
        ({"model.safetensors": b"x" * 100}, StartupFailure.MODEL_INVALID, "no whole safetensors"),
        ({"model.safetensors": b""}, StartupFailure.MODEL_INVALID, "no whole safetensors"),
        ({"model.safetensors.index.json": b"{"}, StartupFailure.MODEL_INVALID, "not valid JSON"),
        (
            {"model.safetensors.index.json": b'{"weight_map": {"a": "x.safetensors"}}'},
            StartupFailure.MODEL_INVALID,
            "lacks x.safetensors",
        ),
        (
            {"model.safetensors.index.json": b'{"weight_map": {"a": "../x.safetensors"}}'},
            StartupFailure.MODEL_INVALID,
            "outside its folder",
        ),
    ],
)
def test_weights_that_are_damaged(
    tmp_path: Path, files: dict[str, bytes], reason: StartupFailure, words: str
) -> None:
    folder = write_folder(tmp_path, CONFIG)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    error = failure(folder)
    assert error.reason is reason
    assert words in str(error)


def test_truncated_safetensors(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, CONFIG)
    save_file({"a": np.ones(100, np.float32)}, folder / "model.safetensors")
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:-1])
    assert failure(folder).reason is StartupFailure.MODEL_INVALID


def test_tokenizer_json(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, CONFIG)
    save_file({"a": np.ones(1, np.float32)}, folder / "model.safetensors")
    assert "no tokenizer.json" in str(failure(folder))
    (folder / "tokenizer.json").write_text("{}")
    assert "tokenizer.json cannot be read" in str(failure(folder))
    write_gguf(tmp_path / "m.gguf")
    open_checkpoint(tmp_path / "m.gguf").tokenizer.save(str(folder / "tokenizer.json"))
    assert open_checkpoint(folder).tokenizer.encode("ab1").ids == [6, 7]


def test_something_else(tmp_path: Path) -> None:
    (tmp_path / "m.bin").write_bytes(b"\x80\x02pickle")
    error = failure(tmp_path / "m.bin")
    assert error.reason is StartupFailure.MODEL_UNSUPPORTED
    assert "neither a GGUF file nor" in str(error)
