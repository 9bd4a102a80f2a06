"""Reads the Dockerfile's stages and names each by the content of all that goes into it."""

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

IGNORED = {"__pycache__"}


@dataclass(frozen=True, slots=True)
class Stage:
    """A FROM and what follows it."""

    name: str
    parent: str
    text: str
    sources: tuple[str, ...]
    others: tuple[str, ...]


def read_stages(text: str) -> dict[str, Stage]:
    """The stages by name, with arguments in FROM replaced by their defaults."""
    head, *blocks = re.split(r"^(?=FROM )", text, flags=re.MULTILINE)
    defaults = dict(re.findall(r"^ARG (\w+)=(\S+)$", head, flags=re.MULTILINE))
    stages = {}
    for block in blocks:
        opening = re.match(r"FROM (\S+) AS (\S+)\n", block)
        if opening is None:
            raise ValueError(f"Not a named stage: {block.splitlines()[0]}")
        parent = re.sub(r"\$\{(\w+)\}", lambda found: defaults[found[1]], opening[1])
        copies = re.findall(r"^COPY ((?!--)\S.*) \S+$", block, flags=re.MULTILINE)
        sources = tuple(source for copy in copies for source in copy.split())
        others = tuple(re.findall(r"from=([\w-]+)", block))
        lines = [line for line in block.splitlines() if line and not line.startswith("#")]
        stages[opening[2]] = Stage(opening[2], parent, "\n".join(lines), sources, others)
    return stages


def key_of(name: str, stages: Mapping[str, Stage], root: Path, base: str) -> str:
    """The same key means the same image: it covers text, copied files and all earlier stages."""
    stage = stages.get(name)
    if stage is None:
        # Only the outside image is no stage.
        return base
    digest = hashlib.sha256(stage.text.encode())
    for earlier in (stage.parent, *stage.others):
        digest.update(key_of(earlier, stages, root, base).encode())
    for path in _files(root, stage.sources):
        mode = "x" if os.access(path, os.X_OK) else "-"
        digest.update(f"\0{path.relative_to(root)}\0{mode}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def _files(root: Path, sources: tuple[str, ...]) -> Iterator[Path]:
    for source in sources:
        path = root / source
        below = sorted(path.rglob("*")) if path.is_dir() else [path]
        yield from (file for file in below if file.is_file() and not IGNORED & set(file.parts))
