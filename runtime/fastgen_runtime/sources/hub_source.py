"""What names a model of the Hugging Face Hub."""

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from fastgen_api.names import StartupFailure
from fastgen_runtime.sources.trouble import DownloadError

SCHEME: Final = "hf://"
_FORM: Final = re.compile(
    r"(?P<repository>[A-Za-z0-9_][\w.-]*/[A-Za-z0-9_][\w.-]*)"
    r"(?:@(?P<revision>refs/(?:pr|heads|tags)/[^/]+|[^/]+))?"
    r"(?:/(?P<file>.+))?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class HubModel:
    """revision: branch, tag or commit; None: the default branch. file: a GGUF file, else None."""

    repository: str
    revision: str | None = None
    file: str | None = None

    def __str__(self) -> str:
        revision = f"@{self.revision}" if self.revision else ""
        return f"{SCHEME}{self.repository}{revision}{f'/{self.file}' if self.file else ''}"


def parse_hub_source(source: str, revision: str | None = None) -> HubModel:
    """Reads `hf://owner/name[@revision][/file.gguf]`; raises DownloadError.

    revision: the one to take where the source names none.
    """
    match = _FORM.fullmatch(source.removeprefix(SCHEME).rstrip("/"))
    if match is None:
        raise DownloadError(
            StartupFailure.MODEL_NOT_FOUND,
            f"{source} names no model of the hub: give hf://owner/name, with @revision or "
            "/file.gguf where they are needed",
        )
    named, file = match["revision"], match["file"]
    if file is not None and not file.endswith(".gguf"):
        raise DownloadError(
            StartupFailure.MODEL_UNSUPPORTED,
            f"{source} names the file {file}: only GGUF files are read alone; for safetensors "
            f"give hf://{match['repository']}",
        )
    return HubModel(match["repository"], unquote(named) if named else revision, file)
