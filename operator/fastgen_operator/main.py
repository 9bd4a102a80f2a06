"""The program `fastgen-operator`."""

import itertools
import os
import sys
from collections.abc import Iterator
from typing import Final

import kopf

from fastgen_api.logs import log_to_stderr
from fastgen_operator.handlers import Operator, registry_of
from fastgen_operator.settings import SettingsError, settings_from

BACKOFFS_SECONDS: Final = (1.0, 1.0, 2.0, 3.0, 5.0, 8.0)
LONGEST_BACKOFF_SECONDS: Final = 10.0


def run() -> None:
    """Runs the operator until SIGTERM or SIGINT.

    Exits with 2 when a setting is wrong, with 1 when it cannot go on.
    """
    try:
        settings = settings_from(os.environ)
    except SettingsError as error:
        print(f"fastgen-operator: {error}", file=sys.stderr)
        sys.exit(2)
    log_to_stderr("fastgen-operator", settings.log_level)
    kopf.run(
        registry=registry_of(Operator(settings)),
        settings=kopf_settings(),
        standalone=True,
        clusterwide=not settings.namespaces,
        namespaces=settings.namespaces,
    )


class _Patience:
    """How long Kopf waits after each failure of a request: it never gives up.

    When it does it ends the process, which helps nobody while the API server is away.
    """

    def __iter__(self) -> Iterator[float]:
        return itertools.chain(BACKOFFS_SECONDS, itertools.repeat(LONGEST_BACKOFF_SECONDS))


def kopf_settings() -> kopf.OperatorSettings:
    """Kopf writes nothing and watches nothing."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 10
    settings.networking.error_backoffs = _Patience()
    # Kinds and namespaces are known; watching them would need rights on all CRDs and namespaces.
    settings.scanning.disabled = True
    return settings
