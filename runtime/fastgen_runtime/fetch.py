"""Brings a model source to a local path: the one place that knows where models come from."""

from pathlib import Path
from urllib.parse import unquote, urlsplit

from fastgen_api.names import StartupFailure
from fastgen_runtime.startup_error import ModelError


class ModelSourceError(ModelError):
    """The source names no model that this replica can reach."""


def fetch(source: str) -> Path:
    """The local GGUF file or Hugging Face folder that `source` names.

    source: `file:///path`, or a plain path. Raises ModelSourceError.
    """
    path = _local_path(source)
    if not path.exists():
        raise ModelSourceError(
            StartupFailure.MODEL_NOT_FOUND, f"no model at {path}: the path does not exist"
        )
    return path


def _local_path(source: str) -> Path:
    if not source.strip():
        raise ModelSourceError(
            StartupFailure.MODEL_NOT_FOUND, "the model source is empty: give file:///path"
        )
    if "://" not in source:
        return Path(source).expanduser().absolute()
    parts = urlsplit(source)
    if parts.scheme != "file":
        raise ModelSourceError(
            StartupFailure.MODEL_UNSUPPORTED,
            f"model sources with the scheme {parts.scheme}:// are not supported yet: "
            "give file:///path of a GGUF file or a Hugging Face folder",
        )
    if parts.netloc not in ("", "localhost"):
        raise ModelSourceError(
            StartupFailure.MODEL_NOT_FOUND,
            f"{source} names the host {parts.netloc}: a local path has three slashes, file:///path",
        )
    return Path(unquote(parts.path))
