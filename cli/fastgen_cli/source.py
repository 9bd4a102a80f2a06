"""Finds the model that a person means."""

from dataclasses import dataclass
from pathlib import Path

from fastgen_cli import smollm2
from fastgen_cli.errors import UserError


class ModelNotFoundError(UserError):
    """No such model; the text says what to give instead."""


@dataclass(frozen=True, slots=True)
class Source:
    """A model on this machine and the name that it is served under."""

    path: Path
    name: str


def find_source(text: str) -> Source:
    """A GGUF file, a Hugging Face folder or `smollm2`; may download the last one."""
    if text == smollm2.SHORTHAND:
        return Source(smollm2.fetch(), smollm2.SHORTHAND)
    return check_path(text)


def check_path(text: str) -> Source:
    """The model at a path, or ModelNotFoundError saying what is wrong with it."""
    way_out = "Give a GGUF file, a Hugging Face folder, or `smollm2`."
    scheme, separator, rest = text.partition("://")
    if separator and scheme != "file":
        raise ModelNotFoundError(f"MODEL: {scheme}:// sources are not read here yet. {way_out}")
    path = Path(rest if separator else text).expanduser()
    if path.is_dir():
        if not (path / "config.json").exists():
            raise ModelNotFoundError(f"MODEL: the folder {path} has no config.json. {way_out}")
        return Source(path.resolve(), path.resolve().name)
    if not path.exists():
        raise ModelNotFoundError(f"MODEL: there is no {path}. {way_out}")
    if path.suffix != ".gguf":
        raise ModelNotFoundError(f"MODEL: {path} is no .gguf file. {way_out}")
    return Source(path.resolve(), path.stem)
