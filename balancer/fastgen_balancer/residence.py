"""The picker's life in a cluster: it follows its FastGenDeployments, and may come to scale them."""

import asyncio
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import httpx2
import msgspec
from lightkube.resources.core_v1 import Pod

from fastgen_api import names
from fastgen_api.sharing import Declared
from fastgen_balancer.cluster import DEPLOYMENT_RESOURCE, Declarations
from fastgen_balancer.connection import connect
from fastgen_balancer.endpoint_files import write_file
from fastgen_balancer.household import Household
from fastgen_balancer.peers import ANSWER_SECONDS
from fastgen_balancer.picker import Picker
from fastgen_balancer.roster import roster_of
from fastgen_balancer.watch import follow

KNOWN_FILE: Final = "deployments.json"
"""Whom this picker serves: where its successor begins while the API server is away."""


def pod_name(environment: Mapping[str, str]) -> str:
    """By which the lease names this pod; the host's name where the operator gave none."""
    return environment.get("POD_NAME") or socket.gethostname()


async def live_in_cluster(
    picker: Picker,
    directory: Path,
    balancer: str,
    namespace: str,
    prometheus_url: str | None,
    max_wait_seconds: float,
) -> None:
    """Runs until it is cancelled."""
    client = connect(namespace)
    http = httpx2.AsyncClient(trust_env=False, timeout=ANSWER_SECONDS)
    home = Household(picker, client, http, namespace, pod_name(os.environ), prometheus_url)

    last: tuple[Declared, ...] = ()

    def serve(declared: tuple[Declared, ...]) -> None:
        nonlocal last
        if declared == last:
            # Most news of a FastGenDeployment is of its status.
            return
        last = declared
        roster = roster_of(balancer, declared, max_wait_seconds)
        if not roster.entries:
            # Who deletes the last one deletes its pods and ours, too, unless they are to go on.
            return
        picker.serve(roster)
        home.follow(declared)
        reached = {entry.deployment for entry in roster.entries}
        kept = tuple(each for each in declared if each.name in reached)
        write_file(directory / KNOWN_FILE, msgspec.json.encode(kept))

    known = read_known(directory)
    declarations = Declarations(known)
    try:
        if known:
            serve(known)
        async with asyncio.TaskGroup() as group:
            group.create_task(
                follow(
                    client,
                    DEPLOYMENT_RESOURCE,
                    namespace,
                    lambda objects: serve(declarations.take(objects)),
                )
            )
            pods = {names.COMPONENT_LABEL: names.Component.BALANCER.value}
            group.create_task(follow(client, Pod, namespace, home.pods_changed, labels=pods))
    finally:
        await home.close()
        await http.aclose()
        await client.close()


def read_known(directory: Path) -> tuple[Declared, ...]:
    """Whom the last picker served; nobody when there was none or its file does not read."""
    try:
        content = (directory / KNOWN_FILE).read_bytes()
        return msgspec.json.decode(content, type=tuple[Declared, ...])
    except (OSError, msgspec.MsgspecError):
        return ()
