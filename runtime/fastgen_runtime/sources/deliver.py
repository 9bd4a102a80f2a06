"""Brings a model from another machine into a cache: the one way, whoever asks for it.

HF_ENDPOINT names the hub, HF_HUB_OFFLINE forbids to ask it. A private model's token is read from
HF_TOKEN, and from nowhere else.
"""

import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Final

from fastgen_api.names import StartupFailure
from fastgen_runtime.sources.https_file import SCHEME as HTTPS_SCHEME
from fastgen_runtime.sources.https_file import deliver_https, parse_https_source
from fastgen_runtime.sources.hub_source import SCHEME as HUB_SCHEME
from fastgen_runtime.sources.hub_source import parse_hub_source
from fastgen_runtime.sources.model import Caches, Model
from fastgen_runtime.sources.patience import Limits, Patience
from fastgen_runtime.sources.progress import Progress
from fastgen_runtime.sources.transfer import Transfer, cache_full
from fastgen_runtime.sources.trouble import DownloadError, without_secrets
from fastgen_runtime.sources.web import Web
from fastgen_runtime.startup_error import ModelError

SCHEMES: Final = (HUB_SCHEME, HTTPS_SCHEME)


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be brought, and how.

    revision: of an hf:// source that names none. pinned: the commit that was resolved before, and
    outdoes both. resolve_only: no weights. may_be_stale: where a branch was in the cache counts
    when the hub does not answer at once.
    """

    source: str
    caches: Caches
    limits: Limits
    revision: str | None = None
    resolve_only: bool = False
    may_be_stale: bool = False
    pinned: str | None = None


def deliver(order: Order, progress: Progress, environment: Mapping[str, str] = os.environ) -> Model:
    """The model's files in the cache; what is there already is not fetched again.

    Raises ModelError; its text holds no token and no query of a URL.
    """
    token = _token(environment)
    bring = _bring_from_hub if order.source.startswith(HUB_SCHEME) else _bring_over_https
    try:
        return bring(order, progress, token)
    except ModelError as error:
        raise DownloadError(error.reason, without_secrets(str(error), token)) from None
    except OSError as error:
        raise _unusable(error, order.caches) from None


def _bring_from_hub(order: Order, progress: Progress, token: str | None) -> Model:
    # Only whoever names the hub pays for its library.
    from huggingface_hub import constants

    from fastgen_runtime.sources.hub import Hub, deliver_hub

    model = parse_hub_source(order.source, order.revision)
    if order.pinned is not None:
        model = replace(model, revision=order.pinned)
    has_token, is_offline = token is not None, constants.is_offline_mode()
    hub = Hub(constants.ENDPOINT, has_token, is_offline, order.may_be_stale)
    with _transfer(hub.endpoint, order, progress, token) as transfer:
        return deliver_hub(model, order.caches.hub, hub, transfer, resolve_only=order.resolve_only)


def _bring_over_https(order: Order, progress: Progress, token: str | None) -> Model:
    file = parse_https_source(order.source)
    if order.revision is not None:
        raise DownloadError(
            StartupFailure.CONFIG_INVALID,
            f"{file} has no revisions: {order.revision} is for hf:// sources, remove it",
        )
    with _transfer(file.url, order, progress, token) as transfer:
        return deliver_https(
            file,
            order.caches.files,
            transfer,
            has_token=token is not None,
            resolve_only=order.resolve_only,
        )


@contextmanager
def _transfer(
    server: str, order: Order, progress: Progress, token: str | None
) -> Iterator[Transfer]:
    def tell(sentence: str) -> None:
        progress.waits(without_secrets(sentence, token))

    with closing(Web(server, token, order.limits.stall_seconds)) as web:
        yield Transfer(web, Patience(order.limits, tell), progress)


def _token(environment: Mapping[str, str]) -> str | None:
    # A Secret that was made from a file ends with a line break.
    token = environment.get("HF_TOKEN", "").strip()
    if not (token.isascii() and token.isprintable()):
        raise DownloadError(
            StartupFailure.CONFIG_INVALID, "HF_TOKEN holds characters that no token has"
        )
    return token or None


def _unusable(error: OSError, caches: Caches) -> DownloadError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return cache_full(caches.root, None)
    return DownloadError(
        StartupFailure.CONFIG_INVALID,
        f"{caches.root} cannot be written: {error.strerror or error}; name another folder in "
        "HF_HOME, or give the claim to the pod's user",
    )
