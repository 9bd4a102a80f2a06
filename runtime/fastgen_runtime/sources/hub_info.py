"""What the hub says of a repository: a commit and its files."""

from pathlib import PurePosixPath
from typing import Annotated
from urllib.parse import quote

import msgspec

from fastgen_api.names import StartupFailure
from fastgen_runtime.sources.checksum import Checksum
from fastgen_runtime.sources.hub_cache import HubFile
from fastgen_runtime.sources.hub_source import HubModel
from fastgen_runtime.sources.trouble import DownloadError

_Sha256 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
_Sha1 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{40}$")]


class _LargeFile(msgspec.Struct):
    sha256: _Sha256
    size: int


class _File(msgspec.Struct, rename="camel"):
    rfilename: str
    size: int
    blob_id: _Sha1
    lfs: _LargeFile | None = None


class _Repository(msgspec.Struct):
    sha: _Sha1
    siblings: list[_File]


def info_url(endpoint: str, model: HubModel) -> str:
    """Where the hub tells of the model's commit, sizes and checksums included."""
    revision = f"/revision/{quote(model.revision, safe='')}" if model.revision else ""
    return f"{endpoint}/api/models/{model.repository}{revision}?blobs=true"


def file_url(endpoint: str, model: HubModel, commit: str, name: str) -> str:
    """Where the hub has a file of the commit."""
    return f"{endpoint}/{model.repository}/resolve/{commit}/{quote(name)}"


def read_info(answer: bytes, endpoint: str) -> tuple[str, dict[str, HubFile]]:
    """The commit and its files by their names; raises DownloadError."""
    try:
        repository = msgspec.json.decode(answer, type=_Repository)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DownloadError(
            StartupFailure.MODEL_NOT_FOUND,
            f"{endpoint} does not answer as a Hugging Face Hub does ({error}): check HF_ENDPOINT "
            "and the proxy",
        ) from None
    return repository.sha, {
        file.rfilename: _hub_file(file)
        for file in repository.siblings
        if _is_inside(file.rfilename)
    }


def _hub_file(file: _File) -> HubFile:
    if file.lfs is not None:
        return HubFile(file.lfs.size, Checksum("sha256", file.lfs.sha256))
    return HubFile(file.size, Checksum("git", file.blob_id))


def _is_inside(name: str) -> bool:
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts
