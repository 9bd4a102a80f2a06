"""Finds the way from this machine to the deployment's Service."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from fastgen_api import names
from fastgen_devcluster import clients
from fastgen_devcluster.cluster import Cluster
from fastgen_devcluster.demo.narration import DemoError

LINE_START = "Forwarding from "


@contextmanager
def open_url(cluster: Cluster, name: str, namespace: str) -> Iterator[str]:
    """The base URL without `/v1`, good while the context lasts.

    The development cluster's ClusterIPs are routed from this machine; to a cluster elsewhere
    kubectl forwards a port.
    """
    service = names.service_name(name)
    if not cluster.is_own:
        address = clients.kubectl(
            cluster,
            *("get", "service", service, "--namespace", namespace),
            *("--output", "jsonpath={.spec.clusterIP}"),
        )
        yield f"http://{address.strip()}"
        return
    command = [str(cluster.kubectl), f"--kubeconfig={cluster.kubeconfig}", "port-forward"]
    command += ["--namespace", namespace, f"service/{service}", f":{names.Port.SERVICE}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as forward:
        try:
            first_line = forward.stdout.readline() if forward.stdout else ""
            if not first_line.startswith(LINE_START):
                raise DemoError(f"kubectl port-forward to service/{service} did not start.")
            yield f"http://{first_line.removeprefix(LINE_START).split(' ')[0]}"
        finally:
            forward.terminate()
