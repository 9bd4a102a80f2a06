"""The picker's life in a cluster: it follows its FastGenDeployment, and may come to scale it."""

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import httpx2
from lightkube import AsyncClient, KubeConfig
from lightkube.resources.core_v1 import Pod
from prometheus_client import CollectorRegistry

from fastgen_api import names
from fastgen_api.spec import Spec
from fastgen_balancer.cluster import watch_cluster
from fastgen_balancer.leader import lead
from fastgen_balancer.lease import lease_holder
from fastgen_balancer.peers import ANSWER_SECONDS, Peers
from fastgen_balancer.picker import Identity, Picker
from fastgen_balancer.settings import settings_of
from fastgen_balancer.signals import LocalSignals
from fastgen_balancer.wake import Alarm, Waker
from fastgen_balancer.watch import follow

PAUSE_SECONDS: Final = 10.0

log = logging.getLogger(__name__)


def pod_name(environment: Mapping[str, str]) -> str:
    """By which the lease names this pod; the host's name where the operator gave none."""
    return environment.get("POD_NAME") or socket.gethostname()


async def live_in_cluster(
    picker: Picker, identity: Identity, prometheus_url: str | None, alarm: Alarm
) -> None:
    """Runs until it is cancelled; `alarm` wakes the autoscaler."""

    def set_spec(spec: Spec) -> None:
        picker.set_settings(settings_of(spec, picker.settings.max_wait_seconds))

    client = AsyncClient(
        # Without trust_env, which would heed proxy variables, the pod's own account must be named.
        config=KubeConfig.from_env(),
        namespace=identity.namespace,
        field_manager=names.BALANCER_MANAGER,
        trust_env=False,
    )
    pod = pod_name(os.environ)
    lease = names.balancer_name(identity.deployment)
    http = httpx2.AsyncClient(trust_env=False, timeout=ANSWER_SECONDS)
    peers = Peers(http, pod)
    waker = Waker(
        pod, alarm.ring, lambda: lease_holder(client, identity.namespace, lease), peers.wake
    )
    picker.on_wait = waker.wake

    async def signals() -> LocalSignals:
        return await peers.signals(picker.signals)

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(
                watch_cluster(
                    client, identity.deployment, identity.namespace, picker.set_endpoints, set_spec
                )
            )
            group.create_task(
                follow(client, Pod, identity.namespace, peers.changed, labels=_balancers(identity))
            )
            group.create_task(picker.share.run(peers))
            group.create_task(waker.run())
            group.create_task(_scale(client, picker, identity, pod, signals, prometheus_url, alarm))
    finally:
        await http.aclose()
        await client.close()


def _balancers(identity: Identity) -> dict[str, Any]:
    """Labels of the deployment's balancer pods."""
    return {
        names.DEPLOYMENT_LABEL: identity.deployment,
        names.COMPONENT_LABEL: names.Component.BALANCER.value,
    }


async def _scale(
    client: AsyncClient,
    picker: Picker,
    identity: Identity,
    pod: str,
    signals: Callable[[], Awaitable[LocalSignals]],
    prometheus_url: str | None,
    alarm: Alarm,
) -> None:
    """Runs the autoscaler; a fault in it must not end the process that carries the requests."""
    while True:
        # Metrics of a new life of the autoscaler would clash with those of the last.
        picker.scaling_registry = CollectorRegistry()
        try:
            await lead(
                client,
                identity.namespace,
                identity.deployment,
                pod,
                signals,
                prometheus_url,
                registry=picker.scaling_registry,
                pause=alarm.pause,
            )
        except Exception:
            log.exception("the autoscaler broke off")
        await asyncio.sleep(PAUSE_SECONDS)
