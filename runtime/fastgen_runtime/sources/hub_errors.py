"""What the Hugging Face Hub refuses, and what to do about it."""

from typing import Final

from fastgen_api.names import StartupFailure
from fastgen_runtime.sources.hub_source import HubModel
from fastgen_runtime.sources.trouble import DownloadError, RefusalError

TOKEN: Final = "spec.model.tokenSecretRef (HF_TOKEN outside Kubernetes)"
"""Where a person puts a token."""


def explain(
    refusal: RefusalError, model: HubModel, endpoint: str, has_token: bool
) -> DownloadError:
    """The sentence for an answer of the hub."""
    match refusal.status, refusal.code:
        case _, "GatedRepo":
            return DownloadError(StartupFailure.ACCESS_DENIED, _gated(model, endpoint, has_token))
        case _, "RevisionNotFound":
            return DownloadError(
                StartupFailure.MODEL_NOT_FOUND,
                f"{model} names a revision that the hub does not have: check it at {endpoint}, or "
                "leave the revision out for the default branch",
            )
        case (401 | 403) as status, _:
            # Without a token the hub does not tell a private model from one that does not exist.
            return DownloadError(
                StartupFailure.ACCESS_DENIED,
                f"{endpoint} shows no {model} ({status}): check the name; if it is private, "
                + (
                    f"the token of {TOKEN} must be valid and its account must have access"
                    if has_token
                    else f"give a token in {TOKEN}"
                ),
            )
        case 404, _:
            return DownloadError(
                StartupFailure.MODEL_NOT_FOUND,
                f"{endpoint} knows no {model}: check the name"
                + ("; if it is private, the token's account must have access" * has_token),
            )
    return DownloadError(
        StartupFailure.MODEL_NOT_FOUND,
        f"{endpoint} answered {refusal.status} to the request for {model}",
    )


def _gated(model: HubModel, endpoint: str, has_token: bool) -> str:
    page = f"{endpoint}/{model.repository}"
    if not has_token:
        return (
            f"{model} is gated: accept its terms at {page}, and give a token of that account in "
            f"{TOKEN}"
        )
    return (
        f"{model} is gated, and the account of the token in {TOKEN} has no access: accept its "
        f"terms at {page} with that account, or give another account's token"
    )
