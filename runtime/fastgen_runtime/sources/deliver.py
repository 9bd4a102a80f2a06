"""Brings a model from another machine into a cache: the one way, whoever asks for it.

HF_ENDPOINT names the hub, HF_HUB_OFFLINE forbids to ask it. A private model's token is read from
HF_TOKEN, and from nowhere else.
"""

import errno
import os
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
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

    revision: of an hf:// source that names none. resolve_only: no weights. may_be_stale: where a
    branch was in the cache counts when the hub does not answer at once.
    """

    source: str
    caches: Caches
    limits: Limits
    revision: str | None = None
    resolve_only: bool = False
    may_be_stale: bool = False


def deliver(order: Order, progress: Progress, environment: Mapping[str, str] = os.environ) -> Model:
    """The model's files in the cache; what is there already is not fetched again.

    Raises ModelError; its text holds no token and no query of a URL.
    """
    token = environment.get("HF_TOKEN") or None
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
    has_token, is_offline = token is not None, constants.is_offline_mode()
    hub = Hub(constants.ENDPOINT, has_token, is_offline, order.may_be_stale)
    with closing(Web(hub.endpoint, token, order.limits.stall_seconds)) as web:
        transfer = Transfer(web, Patience(order.limits, progress.waits), progress)
        return deliver_hub(model, order.caches.hub, hub, transfer, resolve_only=order.resolve_only)


def _bring_over_https(order: Order, progress: Progress, token: str | None) -> Model:
    file = parse_https_source(order.source)
    if order.revision is not None:
        raise DownloadError(
            StartupFailure.CONFIG_INVALID,
            f"{file} has no revisions: {order.revision} is for hf:// sources, remove it",
        )
    with closing(Web(file.url, token, order.limits.stall_seconds)) as web:
        transfer = Transfer(web, Patience(order.limits, progress.waits), progress)
        return deliver_https(
            file,
            order.caches.files,
            transfer,
            has_token=token is not None,
            resolve_only=order.resolve_only,
        )


def _unusable(error: OSError, caches: Caches) -> DownloadError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return cache_full(caches.root, None)
    return DownloadError(
        StartupFailure.CONFIG_INVALID,
        f"{caches.root} cannot be written: {error.strerror or error}; name another folder in "
        "HF_HOME, or give the claim to the pod's user",
    )
