"""Opens a model's files, GGUF or Hugging Face folder, as one thing: a `Checkpoint`.

No torch here: the front process reads tokenizer and chat template from the same checkpoint.
Tensors have Hugging Face's Llama names, whatever the file calls them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from fastgen_runtime.models.architectures import config_from_hf
from fastgen_runtime.models.gguf_config import config_from_gguf
from fastgen_runtime.models.gguf_file import GGUFFile, GGUFTensor, dequantize, read_gguf
from fastgen_runtime.models.hf_folder import StoredTensor, read_json, read_safetensors
from fastgen_runtime.models.model_config import ModelConfig, invalid, unsupported
from fastgen_runtime.text.chat_template import ChatTemplate
from fastgen_runtime.text.tokenizer import tokenizer_from_folder, tokenizer_from_gguf

_GGUF_NAMES: Final = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_Scalar = TypeVar("_Scalar", bound=np.generic)
_ROPE_FACTORS: Final = "rope_freqs.weight"


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """What the model's makers suggest where a request says nothing; None: they say nothing."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None


@dataclass(frozen=True)
class Checkpoint:
    """A model's files. Tokenizer, template and tensors are read when first asked for.

    eos_token_ids: each of them ends an answer. special_tokens: `bos_token` and so on to their
    text. Prompts made by the chat template are to be encoded without special tokens, since
    templates write them out; plain prompts with them.
    """

    path: Path
    config: ModelConfig
    eos_token_ids: frozenset[int]
    bos_token_id: int | None
    special_tokens: Mapping[str, str]
    chat_template_text: str | None
    generation_defaults: GenerationDefaults
    _read_tokenizer: Callable[[], Tokenizer]
    _read_tensors: Callable[[], Mapping[str, StoredTensor]]

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Fast tokenizer; raises ModelError."""
        return self._read_tokenizer()

    @cached_property
    def chat_template(self) -> ChatTemplate | None:
        """None for models without one; raises ModelError when it cannot be compiled."""
        if self.chat_template_text is None:
            return None
        return ChatTemplate(self.chat_template_text, self.special_tokens)

    def tensors(self) -> Mapping[str, StoredTensor]:
        """Every tensor by its Hugging Face name; raises ModelError."""
        return self._read_tensors()


def open_checkpoint(path: Path) -> Checkpoint:
    """Opens a GGUF file or a Hugging Face folder; raises ModelError."""
    try:
        if path.is_dir():
            return _open_folder(path)
        with path.open("rb") as file:
            magic = file.read(4)
        if magic == b"GGUF" or path.suffix == ".gguf":
            return _open_gguf(path)
    except OSError as error:
        raise invalid(f"{path} cannot be read: {error.strerror}") from error
    raise unsupported(f"{path.name} is neither a GGUF file nor a Hugging Face folder")


def _open_folder(folder: Path) -> Checkpoint:
    raw = read_json(folder / "config.json", required=True)
    generation = read_json(folder / "generation_config.json")
    tokenizer_config = read_json(folder / "tokenizer_config.json")
    special = {
        name: text
        for name in ("bos_token", "eos_token", "unk_token", "pad_token")
        if (text := _token_text(tokenizer_config.get(name))) is not None
    }
    bos = raw.get("bos_token_id")
    return Checkpoint(
        path=folder,
        config=config_from_hf(raw),
        eos_token_ids=_merge_ids(raw.get("eos_token_id"), generation.get("eos_token_id")),
        bos_token_id=bos if isinstance(bos, int) else None,
        special_tokens=special,
        chat_template_text=_folder_template(folder, tokenizer_config),
        generation_defaults=_generation_defaults(generation),
        _read_tokenizer=partial(tokenizer_from_folder, folder),
        _read_tensors=partial(_folder_tensors, folder),
    )


def _folder_tensors(folder: Path) -> dict[str, StoredTensor]:
    # Old checkpoints store the frequencies, which follow from the configuration.
    return {
        name: tensor
        for name, tensor in read_safetensors(folder).items()
        if not name.endswith("rotary_emb.inv_freq")
    }


def _folder_template(folder: Path, tokenizer_config: Mapping[str, Any]) -> str | None:
    path = folder / "chat_template.jinja"
    if path.exists():
        return path.read_text(encoding="utf-8")
    template = tokenizer_config.get("chat_template")
    if isinstance(template, list):  # several by name: [{"name": …, "template": …}]
        by_name = {entry.get("name"): entry.get("template") for entry in template}
        template = by_name.get("default")
    return template if isinstance(template, str) else None


def _token_text(token: Any) -> str | None:
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _merge_ids(*values: Any) -> frozenset[int]:
    """Token ids of settings that are a number, a list or missing."""
    ids: set[int] = set()
    for value in values:
        several = value if isinstance(value, list) else [] if value is None else [value]
        if not all(isinstance(number, int) for number in several):
            raise invalid(f"the model's eos_token_id is {value!r}: token ids are integers")
        ids.update(several)
    return frozenset(ids)


def _generation_defaults(generation: Mapping[str, Any]) -> GenerationDefaults:
    def number(name: str) -> float | None:
        value = generation.get(name)
        return float(value) if isinstance(value, int | float) else None

    penalty = number("repetition_penalty")
    if generation.get("do_sample") is False:
        return GenerationDefaults(temperature=0.0, repetition_penalty=penalty)
    top_k = number("top_k")
    return GenerationDefaults(
        temperature=number("temperature"),
        top_p=number("top_p"),
        top_k=None if top_k is None else int(top_k),
        min_p=number("min_p"),
        repetition_penalty=penalty,
    )


def _open_gguf(path: Path) -> Checkpoint:
    file = read_gguf(path)
    metadata = file.metadata
    factors: tuple[float, ...] = ()
    if tensor := file.tensors.get(_ROPE_FACTORS):
        factors = tuple(map(float, tensor.dequantize().ravel()))
    config = config_from_gguf(metadata, factors)
    if "output.weight" not in file.tensors:
        config = replace(config, tied_embeddings=True)
    tokens = metadata.get("tokenizer.ggml.tokens") or []
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise invalid("tokenizer.ggml.tokens is no list of texts")
    ids = {
        f"{name}_token": number
        for name in ("bos", "eos")
        if isinstance(number := metadata.get(f"tokenizer.ggml.{name}_token_id"), int)
    }
    template = metadata.get("tokenizer.chat_template")
    return Checkpoint(
        path=path,
        config=config,
        eos_token_ids=_merge_ids(
            ids.get("eos_token"),
            metadata.get("tokenizer.ggml.eot_token_id"),
        ),
        bos_token_id=ids.get("bos_token"),
        special_tokens={
            name: tokens[number] for name, number in ids.items() if 0 <= number < len(tokens)
        },
        chat_template_text=template if isinstance(template, str) else None,
        generation_defaults=GenerationDefaults(),
        _read_tokenizer=partial(tokenizer_from_gguf, metadata),
        _read_tensors=partial(_gguf_tensors, file, config),
    )


def _gguf_tensors(file: GGUFFile, config: ModelConfig) -> dict[str, StoredTensor]:
    tensors = {}
    for name, tensor in file.tensors.items():
        if name == _ROPE_FACTORS:
            continue
        heads = {"attn_q": config.num_heads, "attn_k": config.num_kv_heads}
        parts = name.split(".")
        rotary_heads = heads.get(parts[2], 0) if parts[0] == "blk" and len(parts) == 4 else 0
        read = partial(_read_gguf_tensor, tensor, rotary_heads)
        tensors[_canonical(name)] = StoredTensor(tensor.shape, read)
    return tensors


def _canonical(name: str) -> str:
    match name.split("."):
        case ["blk", number, module, kind] if module in _GGUF_NAMES:
            return f"model.layers.{number}.{_GGUF_NAMES[module]}.{kind}"
        case [module, kind] if module in _GGUF_NAMES:
            return f"{_GGUF_NAMES[module]}.{kind}"
    raise unsupported(f"the GGUF tensor {name} belongs to no Llama model")


def _read_gguf_tensor(tensor: GGUFTensor, rotary_heads: int) -> NDArray[np.float32]:
    """rotary_heads: set for q and k, whose rows llama.cpp interleaves (x0, x_half, x1, …)."""
    if not rotary_heads:
        return tensor.dequantize()
    if tensor.shape[0] % (2 * rotary_heads):
        raise invalid(f"tensor {tensor.name} has {tensor.shape[0]} rows for {rotary_heads} heads")
    if len(tensor.shape) == 1:
        return _uninterleave(tensor.dequantize(), rotary_heads)
    # Rows are quantised one by one, so that they can be put in order before they are expanded.
    return dequantize(_uninterleave(tensor.rows, rotary_heads), tensor.quantization)


def _uninterleave(rows: NDArray[_Scalar], heads: int) -> NDArray[_Scalar]:
    pairs = rows.reshape(heads, len(rows) // heads // 2, 2, -1)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)
