"""Finds the model that a person means."""

from dataclasses import dataclass
from pathlib import Path

from fastgen_cli.errors import UserError
from fastgen_runtime.sources.fetch import SMOLLM2, fetch, model_name
from fastgen_runtime.startup_error import ModelError


class UnusableModelError(UserError):
    """No such model, or one that cannot be served; the text says what to give instead."""


@dataclass(frozen=True, slots=True)
class Source:
    """A model on this machine and the name that it is served under."""

    path: Path
    name: str


def find_source(text: str, served_name: str | None = None) -> Source:
    """The model that any source of the runtime names; may download it.

    Raises UnusableModelError, also for files that no replica could start with.
    """
    try:
        path = fetch(text)
        if text != SMOLLM2:  # which its hash has checked
            _check_files(path)
    except ModelError as error:
        raise UnusableModelError(
            f"MODEL: {error}. Give a GGUF file, a Hugging Face folder, hf://owner/name, "
            f"https://host/path.gguf, or `{SMOLLM2}`."
        ) from error
    return Source(path, served_name or model_name(text, path))


def _check_files(path: Path) -> None:
    # Half a second of imports that the shorthand does without.
    from fastgen_runtime.models.checkpoint import open_checkpoint

    open_checkpoint(path)
