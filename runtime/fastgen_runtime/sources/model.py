"""What a source resolves to, and where downloads are kept."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Model:
    """revision: the commit of a hub's model, else None. path: GGUF file or folder."""

    revision: str | None
    path: Path
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Caches:
    """root: what people know them by. hub: in Hugging Face's layout. files: of https://."""

    root: Path
    hub: Path
    files: Path


def caches_in(folder: Path) -> Caches:
    """The caches below one folder, where HF_HOME of its readers is FOLDER/huggingface."""
    return Caches(folder, folder / "huggingface" / "hub", folder / "https")


def cache_directory(environment: Mapping[str, str] = os.environ) -> Path:
    """Where downloads of this program are kept: FASTGEN_CACHE or XDG_CACHE_HOME, else ~/.cache."""
    caches = environment.get("FASTGEN_CACHE") or environment.get("XDG_CACHE_HOME")
    return Path(caches or Path.home() / ".cache") / "fastgen"
