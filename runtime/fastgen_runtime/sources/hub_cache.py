"""A repository in the cache that Hugging Face's own tools use, in their layout.

`blobs/` holds the files under their checksums, `snapshots/COMMIT/` links to them by their names,
`refs/` says where branches were, `trees/` what files a commit has.
"""

import contextlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import uuid4

from huggingface_hub._tree_cache import TreeCacheEntry, read_tree_cache, write_tree_cache

from fastgen_runtime.sources.checksum import Checksum

_COMMIT: Final = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a commit; checksum: None where only the cache told of it."""

    size_bytes: int
    checksum: Checksum | None


def is_commit(revision: str) -> bool:
    """Whether it names one commit for ever."""
    return _COMMIT.fullmatch(revision) is not None


class RepositoryCache:
    """One repository's folder in the cache."""

    def __init__(self, cache: Path, repository: str) -> None:
        name = "--".join(["models", *repository.split("/")])
        self.cache = cache
        self.folder = cache / name
        self.lock = cache / ".locks" / name / "fastgen.lock"

    def snapshot(self, commit: str) -> Path:
        """Folder of the commit's files."""
        return self.folder / "snapshots" / commit

    def blob(self, checksum: Checksum) -> Path:
        """Where the content lies."""
        return self.folder / "blobs" / checksum.value

    def commit_of(self, revision: str) -> str | None:
        """The commit that the branch or tag was at when it was last asked for."""
        if is_commit(revision):
            return revision
        try:
            commit = (self.folder / "refs" / revision).read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            return None
        return commit if is_commit(commit) else None

    def files_of(self, commit: str) -> dict[str, HubFile] | None:
        """What the hub said of the commit's files, if it was asked before."""
        entries = read_tree_cache(str(self.folder), commit)
        if entries is None:
            return None
        return {
            name: HubFile(
                entry.size,
                Checksum("sha256", entry.lfs_sha256)
                if entry.lfs_sha256
                else Checksum("git", entry.blob_id),
            )
            for name, entry in entries.items()
        }

    def files_in(self, commit: str) -> dict[str, HubFile]:
        """The commit's files that are here."""
        folder = self.snapshot(commit)
        return {
            str(path.relative_to(folder)): HubFile(path.stat().st_size, None)
            for path in folder.rglob("*")
            if path.is_file()
        }

    def keep(self, revision: str, commit: str, files: Mapping[str, HubFile]) -> None:
        """Remembers what the hub said; a cache that cannot be written stays as it is."""
        entries = {
            name: TreeCacheEntry(
                size=file.size_bytes,
                blob_id=file.checksum.value,
                lfs_sha256=file.checksum.value if file.checksum.kind == "sha256" else None,
                lfs_size=file.size_bytes if file.checksum.kind == "sha256" else None,
            )
            for name, file in files.items()
            if file.checksum is not None
        }
        if self.files_of(commit) is None:
            write_tree_cache(str(self.folder), commit, entries)
        if self.commit_of(revision) != commit:
            with contextlib.suppress(OSError):
                self._point_ref(revision, commit)

    def _point_ref(self, revision: str, commit: str) -> None:
        path = self.folder / "refs" / revision
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(f"{path.name}.{uuid4().hex}")
        fresh.write_text(commit, encoding="ascii")
        fresh.replace(path)

    def link(self, commit: str, name: str, checksum: Checksum) -> None:
        """Gives the content its name in the commit; the content is complete."""
        blob, path = self.blob(checksum), self.snapshot(commit) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        try:
            path.symlink_to(os.path.relpath(blob, path.parent))
        except OSError:  # a file system without links
            blob.replace(path)
