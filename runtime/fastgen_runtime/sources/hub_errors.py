"""What went wrong between a replica and the Hugging Face Hub, and what to do about it."""

import errno
from pathlib import Path

from fastgen_api.names import StartupFailure
from fastgen_runtime.startup_error import ModelError


class HubError(ModelError):
    """The hub's model cannot be had; the text says what to do. It never holds a token."""


def explain(
    error: Exception, source: str, endpoint: str, cache: Path, token: str | None
) -> HubError:
    """The sentence for an error of the hub's library.

    source: the model as `hf://…`. token: what was sent, if anything; it is kept out of the text.
    """
    import httpx2
    from huggingface_hub import errors

    match error:
        case errors.GatedRepoError():
            sentence = _gated(source, endpoint, token)
        case errors.RevisionNotFoundError():
            sentence = f"{source} names a revision that the hub does not have: check it at "
            sentence += f"{endpoint}, or leave @revision out for the default branch"
        case errors.HfHubHTTPError():
            sentence = _status(error.response.status_code, source, endpoint, token)
        case errors.HFValidationError():
            sentence = f"{source} is no name of a model: {_first_line(error)}"
        case errors.RevisionResolutionError() | errors.LocalEntryNotFoundError():
            cause = error.__cause__
            if isinstance(cause, errors.HfHubHTTPError):
                return explain(cause, source, endpoint, cache, token)
            sentence = _unreachable(cause, source, endpoint, cache)
        case httpx2.TransportError():
            sentence = f"the download of {source} broke off ({_first_line(error)}): start again; "
            sentence += f"the files that are complete in {cache} are kept"
        case OSError():
            sentence = _disk(error, source, cache)
        case _:
            sentence = f"{source} cannot be fetched: {type(error).__name__}: {_first_line(error)}"
    if token:
        sentence = sentence.replace(token, "[HF_TOKEN]")
    return HubError(StartupFailure.MODEL_NOT_FOUND, sentence)


def _gated(source: str, endpoint: str, token: str | None) -> str:
    page = f"{endpoint}/{source.removeprefix('hf://').split('@')[0]}"
    if token is None:
        return (
            f"{source} is gated: accept its terms at {page}, and set HF_TOKEN to a token of "
            "that account"
        )
    return (
        f"{source} is gated, and the account of HF_TOKEN has no access: accept its terms at "
        f"{page} with that account, or give another account's token"
    )


def _status(status: int, source: str, endpoint: str, token: str | None) -> str:
    if status in (401, 404):
        access = (
            "if it is private, set HF_TOKEN"
            if token is None
            else "if it is private, HF_TOKEN must be valid and its account must have access"
        )
        return f"{endpoint} knows no {source}: check the name; {access}"
    if status == 403:
        return (
            f"{endpoint} forbids {source}: HF_TOKEN "
            + ("is not set" if token is None else "lacks the permission to read it")
            + "; use a token that may read this repository"
        )
    if status == 429:
        return f"{endpoint} takes no more requests for now (429): wait a while, or set HF_TOKEN"
    return f"{endpoint} answered {status} to the request for {source}: try again later"


def _unreachable(cause: BaseException | None, source: str, endpoint: str, cache: Path) -> str:
    from huggingface_hub.errors import OfflineModeIsEnabled

    if isinstance(cause, OfflineModeIsEnabled):
        return (
            f"{source} is not complete in {cache}, and HF_HUB_OFFLINE forbids to download it: "
            "unset that, or fetch the model first"
        )
    reason = f" ({_first_line(cause)})" if cause is not None and str(cause) else ""
    return (
        f"{endpoint} cannot be reached{reason}, and {source} is not complete in {cache}: check "
        "network, proxy and HF_ENDPOINT, or give file:///path of a local copy"
    )


def _disk(error: OSError, source: str, cache: Path) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk of {cache} is full: make room, or name another folder in HF_HOME"
    if error.errno is not None:
        return f"{cache} cannot be written: {error.strerror}; name another folder in HF_HOME"
    # The library's own: what came is not what was announced.
    return f"{source} did not come whole, start again: {_first_line(error).rstrip('.')}"


def _first_line(error: BaseException) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
