"""Waits for the cluster's parts."""

import ssl
import time
import urllib.request
from collections.abc import Callable

from fastgen_devcluster.clients import kubectl
from fastgen_devcluster.cluster import Cluster
from fastgen_devcluster.errors import SetupError
from fastgen_devcluster.settings import API_PORT, Settings


def wait(what: str, seconds: float, ready: Callable[[], bool], settings: Settings) -> None:
    """Wait until it is ready; raises SetupError that names the logs."""
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > deadline:
            raise SetupError(f"{what} is not ready after {seconds} s; see {settings.logs}.")
        time.sleep(0.1)


def wait_for_deployment(cluster: Cluster, namespace: str, name: str) -> None:
    """Wait until the pods of a Deployment are ready."""
    target = ("rollout", "status", f"deployment/{name}", f"--namespace={namespace}")
    kubectl(cluster, *target, "--timeout=90s")


def api_is_ready(settings: Settings) -> bool:
    """Whether the API server says so."""
    pki = settings.certificates
    try:
        context = ssl.create_default_context(cafile=pki / "ca.crt")
        context.load_cert_chain(pki / "admin.crt", pki / "admin.key")
        handlers = (urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
        url = f"https://{settings.node().address}:{API_PORT}/readyz"
        with urllib.request.build_opener(*handlers).open(url, timeout=2) as answer:
            return bool(answer.read() == b"ok")
    except OSError:
        return False
