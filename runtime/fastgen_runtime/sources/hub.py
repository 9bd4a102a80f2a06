"""Models of the Hugging Face Hub, kept in the cache that Hugging Face's own tools use.

HF_HOME and HF_HUB_CACHE move the cache, HF_ENDPOINT the hub, HF_HUB_OFFLINE forbids to ask it.
A private or gated model's token is read from HF_TOKEN, and from nowhere else.
"""

import hashlib
import logging
import os
import re
import shutil
import sys
from collections.abc import Collection, Mapping
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fastgen_api.names import StartupFailure
from fastgen_runtime.log import log_event
from fastgen_runtime.models.architectures import config_from_hf
from fastgen_runtime.models.gguf_config import config_from_gguf
from fastgen_runtime.models.hf_folder import WEIGHTS, WEIGHTS_INDEX, read_json, shard_names
from fastgen_runtime.models.model_config import unsupported
from fastgen_runtime.sources.download_log import download_log
from fastgen_runtime.sources.hub_errors import HubError, explain
from fastgen_runtime.sources.hub_source import SCHEME, HubModel
from fastgen_runtime.startup_error import ModelError

if TYPE_CHECKING:
    from huggingface_hub import HfApi
    from huggingface_hub._revision import ResolvedRevision

_CONFIG: Final = "config.json"
_SMALL_FILES: Final = (
    _CONFIG,
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    WEIGHTS_INDEX,
)
"""What a checkpoint reads besides its weights; code and pickled weights are never fetched."""
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


def fetch_hub(model: HubModel, cache: Path | None = None) -> Path:
    """The model's folder or GGUF file in the cache, downloaded where it is not there yet.

    Its architecture is checked before any weights are fetched. Raises ModelError.
    """
    import huggingface_hub
    from huggingface_hub import constants

    _fit_to_our_log()
    token = os.environ.get("HF_TOKEN") or None
    cache = cache or Path(constants.HF_HUB_CACHE).expanduser()
    # False: no token that somebody once saved on this machine.
    api = huggingface_hub.HfApi(constants.ENDPOINT, token=token or False, library_name="fastgen")
    try:
        return _Snapshot(model, api, cache).fetch()
    except ModelError:
        raise
    except Exception as error:  # of several libraries, with no base in common
        raise explain(error, str(model), constants.ENDPOINT, cache, token) from None


class _Snapshot:
    """One model at one commit."""

    def __init__(self, model: HubModel, api: "HfApi", cache: Path) -> None:
        self._model = model
        self._api = api
        self._cache = cache
        self._revision: ResolvedRevision = api.resolve_revision(
            model.repository, revision=model.revision, cache_dir=cache
        )
        log_event(
            "model of the hub",
            repository=model.repository,
            revision=str(self._revision),
            commit=self._revision.resolved,
        )

    def fetch(self) -> Path:
        folder = self._download([_CONFIG] if self._model.file is None else [])
        sizes = self._files(folder)
        gguf = choose_gguf(self._model, sizes)
        if gguf is not None:
            if not (folder / gguf).exists():
                self._check_gguf()
            self._get(folder, {gguf: sizes[gguf]})
            return folder / gguf
        config_from_hf(read_json(folder / _CONFIG, required=True))
        small = [name for name in _SMALL_FILES if name in sizes]
        self._get(folder, {name: sizes[name] for name in small})
        index = read_json(folder / WEIGHTS_INDEX) if WEIGHTS_INDEX in small else {}
        weights = choose_weights(str(self._model), sizes, index)
        self._get(folder, {name: sizes[name] for name in weights})
        return folder

    def _files(self, folder: Path) -> dict[str, int]:
        """Bytes of every file of the commit; of the cached ones where the hub never told."""
        from huggingface_hub import get_cached_repo_tree
        from huggingface_hub.errors import CachedRepoTreeNotFoundError

        try:
            tree = get_cached_repo_tree(
                self._model.repository, revision=self._revision, cache_dir=self._cache
            )
            return {file.path: file.size for file in tree}
        except CachedRepoTreeNotFoundError:
            return {
                str(path.relative_to(folder)): path.stat().st_size
                for path in folder.rglob("*")
                if path.is_file()
            }

    def _check_gguf(self) -> None:
        """Refuses an architecture that the hub knows of and we do not."""
        info = self._api.model_info(
            self._model.repository, revision=self._revision.resolved, expand=["gguf"]
        )
        architecture = (info.gguf or {}).get("architecture")
        if architecture is None:
            return
        try:
            config_from_gguf({"general.architecture": architecture}, ())
        except ModelError as error:
            # That the other settings are missing is no wonder: they are in the file.
            if error.reason is StartupFailure.MODEL_UNSUPPORTED:
                raise

    def _get(self, folder: Path, sizes: Mapping[str, int]) -> None:
        """Downloads the files that are missing and checks what came."""
        missing = {name: size for name, size in sizes.items() if not (folder / name).exists()}
        if not missing:
            return
        check_room(self._cache, sum(missing.values()))
        with download_log(folder.parents[1] / "blobs", sum(missing.values())):
            self._download(list(missing))
        for name in missing:
            check_sum(folder / name)

    def _download(self, names: list[str]) -> Path:
        """Asks for the list of files, too, where it is not known yet."""
        path = self._api.snapshot_download(
            self._model.repository,
            revision=self._revision,
            cache_dir=self._cache,
            allow_patterns=[escape(name) for name in names],
        )
        return Path(path)


def choose_gguf(model: HubModel, names: Collection[str]) -> str | None:
    """The GGUF file to fetch; None: the repository's safetensors are. Raises ModelError."""
    gguf = sorted(name for name in names if name.endswith(".gguf"))
    if model.file is not None:
        if model.file not in names:
            raise HubError(
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
        raise HubError(
            StartupFailure.MODEL_NOT_FOUND,
            f"{model} holds {len(gguf)} GGUF files: name one, "
            f"{SCHEME}{model.repository}/FILE, of {', '.join(gguf)}",
        )
    return gguf[0]


def choose_weights(
    source: str, names: Collection[str], index: Mapping[str, Any]
) -> tuple[str, ...]:
    """The safetensors to fetch; raises ModelError for what no replica could load."""
    if _CONFIG not in names:
        raise unsupported(f"{source} holds no {_CONFIG}")
    if "tokenizer.json" not in names:
        raise unsupported(f"{source} holds no tokenizer.json: only fast tokenizers are read")
    if WEIGHTS in names:
        return (WEIGHTS,)
    shards = shard_names(index) if index else sorted(
        name for name in names if name.endswith(".safetensors") and "/" not in name
    )  # fmt: skip
    if missing := [name for name in shards if name not in names]:
        raise HubError(StartupFailure.MODEL_INVALID, f"{source} lacks {', '.join(missing)}")
    return tuple(shards)


def check_room(cache: Path, num_bytes: int) -> None:
    """Raises HubError when the disk of the cache has less room."""
    existing = next(path for path in (cache, *cache.absolute().parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if free < num_bytes:
        raise HubError(
            StartupFailure.MODEL_NOT_FOUND,
            f"the download needs {num_bytes / 1e9:.1f} GB and {cache} has {free / 1e9:.1f} GB "
            "left: make room, or name another folder in HF_HOME",
        )


def check_sum(path: Path) -> None:
    """Compares a large file with the SHA-256 that it is stored under; removes it and raises.

    Small files are stored under a Git hash, and only their size is checked.
    """
    blob = path.resolve()
    if not _SHA256.fullmatch(blob.name):
        return
    with blob.open("rb") as file:
        actual = hashlib.file_digest(file, "sha256").hexdigest()
    if actual != blob.name:
        path.unlink()
        blob.unlink(missing_ok=True)
        raise HubError(
            StartupFailure.MODEL_INVALID,
            f"{path.name} came with the SHA-256 {actual}, and {blob.name} was announced: it was "
            "removed, start again to download it anew",
        )


def _fit_to_our_log() -> None:
    """Bars only on a terminal, and the library's warnings as lines of our log."""
    from huggingface_hub.utils.tqdm import disable_progress_bars

    if not sys.stderr.isatty():
        disable_progress_bars()
    logger = logging.getLogger("huggingface_hub")
    logger.handlers.clear()
    logger.propagate = True
