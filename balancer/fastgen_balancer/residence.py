"""The picker's life in a cluster: it follows its FastGenDeployment, and may come to scale it."""

import asyncio
import logging
import os
import socket
from collections.abc import Mapping
from typing import Final

from lightkube import AsyncClient, KubeConfig
from prometheus_client import CollectorRegistry

from fastgen_api.names import BALANCER_MANAGER
from fastgen_api.spec import Spec
from fastgen_balancer.cluster import watch_cluster
from fastgen_balancer.leader import lead
from fastgen_balancer.picker import Identity, Picker
from fastgen_balancer.settings import settings_of

PAUSE_SECONDS: Final = 10.0

log = logging.getLogger(__name__)


def pod_name(environment: Mapping[str, str]) -> str:
    """By which the lease names this pod; the host's name where the operator gave none."""
    return environment.get("POD_NAME") or socket.gethostname()


async def live_in_cluster(picker: Picker, identity: Identity, prometheus_url: str | None) -> None:
    """Runs until it is cancelled."""

    def set_spec(spec: Spec) -> None:
        picker.set_settings(settings_of(spec, picker.settings.max_wait_seconds))

    client = AsyncClient(
        # Without trust_env, which would heed proxy variables, the pod's own account must be named.
        config=KubeConfig.from_env(),
        namespace=identity.namespace,
        field_manager=BALANCER_MANAGER,
        trust_env=False,
    )
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(
                watch_cluster(
                    client, identity.deployment, identity.namespace, picker.set_endpoints, set_spec
                )
            )
            group.create_task(_scale(client, picker, identity, prometheus_url))
    finally:
        await client.close()


async def _scale(
    client: AsyncClient, picker: Picker, identity: Identity, prometheus_url: str | None
) -> None:
    """Runs the autoscaler; a fault in it must not end the process that carries the requests."""
    pod = pod_name(os.environ)
    while True:
        # Metrics of a new life of the autoscaler would clash with those of the last.
        picker.scaling_registry = CollectorRegistry()
        try:
            await lead(
                client,
                identity.namespace,
                identity.deployment,
                pod,
                picker.signals,
                prometheus_url,
                registry=picker.scaling_registry,
            )
        except Exception:
            log.exception("the autoscaler broke off")
        await asyncio.sleep(PAUSE_SECONDS)
