"""Checkpoints that are Hugging Face folders, whole and damaged."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_files import CONFIG, failure, write_folder, write_gguf
from safetensors.numpy import save_file

from fastgen_api.names import StartupFailure
from fastgen_runtime.models.checkpoint import GenerationDefaults, open_checkpoint
from fastgen_runtime.models.model_config import RopeKind, RopeScaling


def test_folder(tmp_path: Path) -> None:
    folder = write_folder(
        tmp_path,
        CONFIG | {"rope_scaling": {"type": "linear", "factor": 2.0}, "bos_token_id": 3},
        generation_config={
            "eos_token_id": [1, 5],
            "temperature": 0.6,
            "top_p": 0.9,
            "top_k": 20,
            "min_p": 0.05,
            "repetition_penalty": 1.1,
        },
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
    assert checkpoint.generation_defaults == GenerationDefaults(
        temperature=0.6, top_p=0.9, top_k=20, min_p=0.05, repetition_penalty=1.1
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
        ({"hidden_act": "relu2"}, "the activation relu2 is not supported; supported: gelu, "),
        ({"rope_scaling": {"rope_type": "axial", "factor": 2}}, "rope scaling axial"),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "default"}}},
            "differ between layers",
        ),
        ({"architectures": ["FalconForCausalLM"], "alibi": True}, "Falcon with alibi positions"),
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


def test_tensors_of_other_types_are_refused_when_they_are_read(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, CONFIG)
    save_file({"a": np.ones(3, np.int8)}, folder / "model.safetensors")
    assert open_checkpoint(folder).tensors()["a"].shape == (3,)
    error = failure(folder)
    assert error.reason is StartupFailure.MODEL_UNSUPPORTED
    assert "tensor a of model.safetensors has the type I8; supported: F32" in str(error)


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
