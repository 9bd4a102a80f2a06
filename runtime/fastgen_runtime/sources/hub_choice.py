"""Which files of a repository a replica needs."""

from collections.abc import Collection, Mapping
from typing import Any, Final

from fastgen_api.names import StartupFailure
from fastgen_runtime.models.hf_folder import WEIGHTS, WEIGHTS_INDEX, shard_names
from fastgen_runtime.models.model_config import unsupported
from fastgen_runtime.sources.hub_source import SCHEME, HubModel
from fastgen_runtime.sources.trouble import DownloadError

CONFIG: Final = "config.json"
SMALL_FILES: Final = (
    CONFIG,
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    WEIGHTS_INDEX,
)
"""What a checkpoint reads besides its weights; code and pickled weights are never fetched."""


def choose_gguf(model: HubModel, names: Collection[str]) -> str | None:
    """The GGUF file to fetch; None: the repository's safetensors are. Raises ModelError."""
    gguf = sorted(name for name in names if name.endswith(".gguf"))
    if model.file is not None:
        if model.file not in names:
            raise DownloadError(
                StartupFailure.MODEL_NOT_FOUND,
                f"{SCHEME}{model.repository} has no file {model.file}; "
                f"its GGUF files: {', '.join(gguf) or 'none'}",
            )
        return model.file
    if any(name.endswith(".safetensors") and "/" not in name for name in names):
        return None
    if not gguf:
        pickled = any(name.endswith((".bin", ".pt", ".pth")) for name in names)
        raise unsupported(
            f"{model} holds no safetensors and no GGUF file"
            + (": pickled weights can run code when loaded, convert them" if pickled else "")
        )
    if len(gguf) > 1:
        raise DownloadError(
            StartupFailure.MODEL_NOT_FOUND,
            f"{model} holds {len(gguf)} GGUF files: name one, "
            f"{SCHEME}{model.repository}/FILE, of {', '.join(gguf)}",
        )
    return gguf[0]


def choose_weights(
    source: str, names: Collection[str], index: Mapping[str, Any]
) -> tuple[str, ...]:
    """The safetensors to fetch; raises ModelError for what no replica could load."""
    if CONFIG not in names:
        raise unsupported(f"{source} holds no {CONFIG}")
    if "tokenizer.json" not in names:
        raise unsupported(f"{source} holds no tokenizer.json: only fast tokenizers are read")
    if WEIGHTS in names:
        return (WEIGHTS,)
    shards = shard_names(index) if index else sorted(
        name for name in names if name.endswith(".safetensors") and "/" not in name
    )  # fmt: skip
    if missing := [name for name in shards if name not in names]:
        raise DownloadError(StartupFailure.MODEL_INVALID, f"{source} lacks {', '.join(missing)}")
    return tuple(shards)
