"""Brings a model source to a local path: the one place that knows where models come from."""

import os
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from fastgen_api.names import StartupFailure
from fastgen_runtime.sources.hub_source import SCHEME as HUB_SCHEME
from fastgen_runtime.sources.hub_source import parse_hub_source
from fastgen_runtime.sources.model import Caches, cache_directory
from fastgen_runtime.sources.patience import Limits, limits_from
from fastgen_runtime.sources.smollm2 import fetch_smollm2
from fastgen_runtime.sources.trouble import without_secrets
from fastgen_runtime.startup_error import ModelError

SMOLLM2: Final = "smollm2"
"""Shorthand of the small model that demo and tests share; it is downloaded once."""

_LIMITS: Final = Limits(patience_seconds=300, contact_seconds=20)
"""Somebody is waiting for it: what cannot be reached at all is told soon."""
_REMOTE: Final = (HUB_SCHEME, "https://")


class ModelSourceError(ModelError):
    """The source names no model that this replica can reach."""


def fetch(source: str) -> Path:
    """The local GGUF file or Hugging Face folder that `source` names.

    source: `file:///path`, a plain path, `hf://owner/name[@revision][/file.gguf]`,
    `https://host/path.gguf[#sha256=HEX]`, or `smollm2` (a file of this name is `./smollm2`). Raises
    ModelError.
    """
    if source == SMOLLM2:
        return fetch_smollm2()
    if source.startswith(_REMOTE):
        return _download(source)
    path = _local_path(source)
    if not path.exists():
        raise ModelSourceError(
            StartupFailure.MODEL_NOT_FOUND, f"no model at {path}: the path does not exist"
        )
    return path


def _download(source: str) -> Path:
    # Only whoever names another machine pays for the libraries.
    from huggingface_hub import constants

    from fastgen_runtime.sources.deliver import Order, deliver
    from fastgen_runtime.sources.progress import Progress, logged, shown

    hub = Path(constants.HF_HUB_CACHE).expanduser()
    files = cache_directory() / "https"
    root = hub if source.startswith(HUB_SCHEME) else files
    limits = limits_from(os.environ, _LIMITS)
    order = Order(source, Caches(root, hub, files), limits, may_be_stale=True)
    progress = Progress()
    with logged(progress), shown(progress, without_secrets(source, None)):
        return deliver(order, progress).path


def model_name(source: str, path: Path) -> str:
    """The name that clients know the model by when nobody gave one: the source's own.

    path: what `fetch` made of the source.
    """
    if source == SMOLLM2:
        return SMOLLM2
    if source.startswith(HUB_SCHEME):
        return parse_hub_source(source).repository
    # A folder's name may hold a dot that begins no suffix.
    return path.stem if path.is_file() else path.name


def _local_path(source: str) -> Path:
    if not source.strip():
        raise ModelSourceError(
            StartupFailure.MODEL_NOT_FOUND,
            "the model source is empty: give hf://owner/name or file:///path",
        )
    if "://" not in source:
        return Path(source).expanduser().absolute()
    parts = urlsplit(source)
    if parts.scheme != "file":
        raise ModelSourceError(
            StartupFailure.MODEL_UNSUPPORTED,
            f"model sources with the scheme {parts.scheme}:// are not supported: "
            "give hf://owner/name, https://host/path.gguf, or file:///path of a GGUF file or a "
            "Hugging Face folder",
        )
    if parts.netloc not in ("", "localhost"):
        raise ModelSourceError(
            StartupFailure.MODEL_NOT_FOUND,
            f"{source} names the host {parts.netloc}: a local path has three slashes, file:///path",
        )
    return Path(unquote(parts.path))
