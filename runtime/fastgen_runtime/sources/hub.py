"""Models of the Hugging Face Hub, kept in the cache that Hugging Face's own tools use."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fastgen_api.names import StartupFailure
from fastgen_runtime.log import log_event
from fastgen_runtime.models.architectures import config_from_hf
from fastgen_runtime.models.hf_folder import WEIGHTS_INDEX, read_json
from fastgen_runtime.sources.gguf_head import check_gguf_head
from fastgen_runtime.sources.hub_cache import HubFile, RepositoryCache, is_commit
from fastgen_runtime.sources.hub_choice import CONFIG, SMALL_FILES, choose_gguf, choose_weights
from fastgen_runtime.sources.hub_errors import explain
from fastgen_runtime.sources.hub_info import file_url, info_url, read_info
from fastgen_runtime.sources.hub_source import HubModel
from fastgen_runtime.sources.model import Model
from fastgen_runtime.sources.model_lock import model_lock
from fastgen_runtime.sources.transfer import RemoteFile, Transfer
from fastgen_runtime.sources.trouble import DownloadError, PassingError, RefusalError
from fastgen_runtime.startup_error import ModelError


@dataclass(frozen=True, slots=True)
class Hub:
    """may_be_stale: where a branch was in the cache counts when the hub does not answer at once."""

    endpoint: str
    has_token: bool
    is_offline: bool = False
    may_be_stale: bool = False


def deliver_hub(
    model: HubModel, cache: Path, hub: Hub, transfer: Transfer, *, resolve_only: bool
) -> Model:
    """The model's folder or GGUF file in the cache, downloaded where it is not there yet.

    Its architecture is checked before any weights are fetched. resolve_only: none are. Raises
    ModelError and OSError.
    """
    try:
        commit = _Commit.resolve(model, RepositoryCache(cache, model.repository), hub, transfer)
        return commit.deliver(resolve_only)
    except RefusalError as refusal:
        raise explain(refusal, model, hub.endpoint, hub.has_token) from None


@dataclass(frozen=True, slots=True)
class _Commit:
    """One model at one commit. files: all that the commit has."""

    model: HubModel
    repository: RepositoryCache
    hub: Hub
    transfer: Transfer
    commit: str
    files: Mapping[str, HubFile]

    @classmethod
    def resolve(
        cls, model: HubModel, repository: RepositoryCache, hub: Hub, transfer: Transfer
    ) -> "_Commit":
        """The commit that the model's revision names."""
        revision = model.revision or "main"

        def at(commit: str, files: Mapping[str, HubFile]) -> _Commit:
            return cls(model, repository, hub, transfer, commit, files)

        def cached() -> _Commit | None:
            commit = repository.commit_of(revision)
            if commit is None:
                return None
            found = at(commit, repository.files_of(commit) or repository.files_in(commit))
            return found if found.is_complete() else None

        def ask() -> _Commit:
            try:
                answer = transfer.read_once(info_url(hub.endpoint, model))
            except PassingError as trouble:
                if hub.may_be_stale and (known := cached()):
                    log_event("the cache serves without the hub", why=str(trouble))
                    return known
                raise
            commit, files = read_info(answer, hub.endpoint)
            repository.keep(revision, commit, files)
            return at(commit, files)

        if is_commit(revision) and (files := repository.files_of(revision)):
            return at(revision, files)
        if hub.is_offline:
            if known := cached():
                return known
            raise _offline(model, repository)
        return transfer.patience.persist(ask)

    @property
    def folder(self) -> Path:
        return self.repository.snapshot(self.commit)

    def lacking(self, names: Sequence[str]) -> list[str]:
        return [name for name in names if not (self.folder / name).exists()]

    def is_complete(self) -> bool:
        """Whether all that a replica needs of it is in the cache."""
        try:
            gguf = choose_gguf(self.model, self.files)
            small = [gguf] if gguf else self._small_files()
            return not self.lacking(small) and (bool(gguf) or not self.lacking(self._weights()))
        except ModelError:
            return False

    def deliver(self, resolve_only: bool) -> Model:
        log_event(
            "model of the hub",
            repository=self.model.repository,
            revision=self.model.revision or "main",
            commit=self.commit,
        )
        gguf = choose_gguf(self.model, self.files)
        if gguf is not None:
            path, names = self.folder / gguf, [gguf]
            if self.lacking(names) and not self.hub.is_offline:
                check_gguf_head(self.transfer.head(self._url(gguf), gguf).data, gguf)
        else:
            path = self.folder
            self._get([CONFIG] if CONFIG in self.files else [])
            config_from_hf(read_json(path / CONFIG, required=True))
            small = self._small_files()
            self._get([name for name in small if name == WEIGHTS_INDEX or not resolve_only])
            names = [*small, *self._weights()]
        size_bytes = sum(self.files[name].size_bytes for name in names)
        self.transfer.progress.resolved(self.commit, path, size_bytes)
        if not resolve_only:
            self._get(names)
        return Model(self.commit, path, size_bytes)

    def _small_files(self) -> list[str]:
        return [name for name in SMALL_FILES if name in self.files]

    def _weights(self) -> tuple[str, ...]:
        """Needs the index, where there is one."""
        index = read_json(self.folder / WEIGHTS_INDEX) if WEIGHTS_INDEX in self.files else {}
        return choose_weights(str(self.model), self.files, index)

    def _url(self, name: str) -> str:
        return file_url(self.hub.endpoint, self.model, self.commit, name)

    def _get(self, names: Sequence[str]) -> None:
        """Downloads the files that are missing."""
        if self.lacking(names):
            if self.hub.is_offline:
                raise _offline(self.model, self.repository)
            with model_lock(self.repository.lock, self.transfer.progress.waits_for_another):
                self._download(self.lacking(names))
        for name in names:
            self.transfer.progress.has(name, self.files[name].size_bytes)

    def _download(self, names: Sequence[str]) -> None:
        checksums = {name: self.files[name].checksum for name in names}
        wanted = [
            RemoteFile(
                self._url(name),
                name,
                self.files[name].size_bytes,
                self.repository.blob(checksum),
                checksum,
            )
            for name, checksum in checksums.items()
            if checksum is not None and not self.repository.blob(checksum).exists()
        ]
        # Two names may have the same content.
        self.transfer.bring(
            list({file.target: file for file in wanted}.values()), self.repository.cache
        )
        for name, checksum in checksums.items():
            if checksum is not None:
                self.repository.link(self.commit, name, checksum)


def _offline(model: HubModel, repository: RepositoryCache) -> DownloadError:
    return DownloadError(
        StartupFailure.MODEL_NOT_FOUND,
        f"{model} is not complete in {repository.cache}, and HF_HUB_OFFLINE forbids to download "
        "it: unset that, or fetch the model first",
    )
