"""The program `fastgen-operator`."""

import os
import sys
from typing import Final

import kopf

from fastgen_api.logs import log_to_stderr
from fastgen_operator.handlers import registry_of
from fastgen_operator.settings import SettingsError, settings_from

WORKER_LIMIT: Final = 20


def run() -> None:
    """Runs the operator until SIGTERM or SIGINT; exits with 2 when a setting is wrong."""
    try:
        settings = settings_from(os.environ)
    except SettingsError as error:
        print(f"fastgen-operator: {error}", file=sys.stderr)
        sys.exit(2)
    log_to_stderr("fastgen-operator", settings.log_level)
    kopf.run(
        registry=registry_of(settings),
        settings=kopf_settings(),
        standalone=True,
        clusterwide=not settings.namespaces,
        namespaces=settings.namespaces,
    )


def kopf_settings() -> kopf.OperatorSettings:
    """Kopf watches for us and writes nothing.

    A watch that the network has dropped without a word is noticed after `inactivity_timeout`:
    the API server sends a bookmark each minute.
    """
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.watching.server_timeout = 240
    settings.watching.client_timeout = 300
    settings.watching.connect_timeout = 10
    settings.watching.inactivity_timeout = 70
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 10
    settings.queueing.worker_limit = WORKER_LIMIT
    # Kinds and namespaces are known; watching them would need rights on all CRDs and namespaces.
    settings.scanning.disabled = True
    return settings
