"""A folder that changes as a mounted Secret does: all files in one move of a link."""

import itertools
import os
import shutil
from collections.abc import Mapping
from pathlib import Path


class MountedSecret:
    """The files lie in a folder of each version, behind links by way of `..data`."""

    def __init__(self, folder: Path, data: Mapping[str, str | bytes]) -> None:
        self.folder = folder
        self._versions = itertools.count(1)
        folder.mkdir(parents=True)
        self.replace(data)

    def replace(self, data: Mapping[str, str | bytes]) -> None:
        """Makes another version the one that counts."""
        version = self.folder / f"..version_{next(self._versions)}"
        version.mkdir()
        for name, content in data.items():
            content = content.encode() if isinstance(content, str) else content
            (version / name).write_bytes(content)
        link = self.folder / "..data"
        old = link.resolve() if link.exists() else None
        fresh = self.folder / "..data_tmp"
        fresh.symlink_to(version.name)
        os.replace(fresh, link)
        for path in self.folder.iterdir():
            if not path.name.startswith("..") and path.name not in data:
                path.unlink()
        for name in data:
            if not (self.folder / name).is_symlink():
                (self.folder / name).symlink_to(f"..data/{name}")
        if old is not None:
            shutil.rmtree(old)
