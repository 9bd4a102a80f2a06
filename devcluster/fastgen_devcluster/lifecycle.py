"""Brings the cluster up and tells how it is."""

import fcntl
import ssl
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from rich.markup import escape

from fastgen_devcluster import components, configuration, control_groups, network, registry
from fastgen_devcluster import contents as cluster_contents
from fastgen_devcluster.certificates import ensure_certificates
from fastgen_devcluster.clients import kubectl
from fastgen_devcluster.cluster import Cluster, development
from fastgen_devcluster.command import CommandError
from fastgen_devcluster.contents import Contents
from fastgen_devcluster.errors import SetupError
from fastgen_devcluster.images import build_images
from fastgen_devcluster.packages import ensure_packages
from fastgen_devcluster.process import Ledger
from fastgen_devcluster.programs import Programs, ensure_programs, missing_modules
from fastgen_devcluster.progress import console, step
from fastgen_devcluster.runtime_store import containers, remove_containers
from fastgen_devcluster.settings import API_PORT, Node, Settings
from fastgen_devcluster.teardown import leftovers, take_down

PROCESSES = (
    "registry",
    "etcd",
    "containerd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
    "kube-proxy",
)


@dataclass(frozen=True, slots=True)
class Status:
    """Which processes run and whether the API server says that it is ready."""

    running: tuple[str, ...]
    missing: tuple[str, ...]
    api_ready: bool

    @property
    def is_up(self) -> bool:
        """Whether everything is there."""
        return self.api_ready and not self.missing


@contextmanager
def locked(settings: Settings) -> Iterator[None]:
    """One at a time: a second `up` waits and then finds the cluster running."""
    settings.state.mkdir(parents=True, exist_ok=True)
    with (settings.state / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def status(settings: Settings) -> Status:
    """How the cluster is, without changing anything."""
    ledger = Ledger(settings.records)
    running = tuple(name for name in PROCESSES if ledger.find(name))
    missing = tuple(name for name in PROCESSES if name not in running)
    return Status(running, missing, "kube-apiserver" in running and _api_is_ready(settings))


def bring_up(settings: Settings) -> None:
    """Start what does not run yet and wait until pods find one another by name."""
    ensure_packages()
    node = settings.node()
    # Pods live in containerd's mounts and objects in etcd: nothing goes on without these two.
    if {"containerd", "etcd"} & set(status(settings).missing) and leftovers(settings, node):
        with step("clean up after a cluster that ended halfway"):
            take_down(settings, node)
    contents = cluster_contents.references(settings)
    _prepare(settings, node, contents)
    programs = _compile(settings)
    with step("start the control plane"):
        _start_control_plane(settings, node, programs)
        cluster_contents.ensure_images(contents, programs)
        _wait("the API server", 60, lambda: _api_is_ready(settings), settings)
    with step("start the node"):
        _start_node(settings, node, programs)
        cluster = development(settings)
        manifests = cluster_contents.manifests(settings, contents)
        kubectl(cluster, "apply", "--server-side", "--filename=-", stdin=manifests)
    with step("wait for DNS and Prometheus"):
        _wait_for_deployment(cluster, "kube-system", "coredns")
        _wait_for_deployment(cluster, "monitoring", "prometheus")


def _prepare(settings: Settings, node: Node, contents: Contents) -> None:
    """Everything that does not wait for the compiler: then images can be pushed and pulled."""
    ledger, logs = Ledger(settings.records), settings.logs
    ensure_certificates(settings, [node])
    configuration.write(settings, node, contents.pause)
    network.create(settings, node)
    control_groups.create(node.name)
    ledger.start("registry", components.registry(settings, node), logs / "registry.log")
    _wait("the registry", 20, lambda: registry.is_serving(settings.registry), settings)
    fresh = not ledger.find("containerd")
    _start_containerd(settings, node)
    if fresh and containers(settings):
        # Left on record by a crash: containerd must not remember them as having run.
        remove_containers(settings)
        ledger.stop(["containerd"], grace_seconds=5)
        _start_containerd(settings, node)


def _start_containerd(settings: Settings, node: Node) -> None:
    log = settings.logs / "containerd.log"
    Ledger(settings.records).start("containerd", components.containerd(settings, node), log)
    _wait("containerd", 20, lambda: _containerd_answers(settings), settings)


def _compile(settings: Settings) -> Programs:
    """Compile the programs the first time, and build the images beside it: both take minutes."""
    if not missing_modules(settings.cache):
        return Programs(settings.cache)
    with ThreadPoolExecutor(max_workers=1) as beside:
        images = beside.submit(build_images)
        programs = ensure_programs(settings.cache)
    try:
        images.result()
    except (CommandError, SetupError) as failure:
        # A cluster can do without them; `build-images` says the same when somebody needs them.
        console.print(f"  [yellow]no images yet[/yellow]  {escape(str(failure))}", soft_wrap=True)
    return programs


def _start_control_plane(settings: Settings, node: Node, programs: Programs) -> None:
    ledger, logs = Ledger(settings.records), settings.logs
    if not ledger.find("kube-apiserver"):
        settings.audit_log.unlink(missing_ok=True)
    ledger.start("etcd", components.etcd(settings, node, programs), logs / "etcd.log")
    for name, argv in (
        ("kube-apiserver", components.apiserver(settings, node, programs)),
        ("kube-controller-manager", components.controller_manager(settings, node, programs)),
        ("kube-scheduler", components.scheduler(settings, node, programs)),
    ):
        ledger.start(name, argv, logs / f"{name}.log")


def _start_node(settings: Settings, node: Node, programs: Programs) -> None:
    ledger, logs = Ledger(settings.records), settings.logs
    runtime = ledger.find("containerd")
    if runtime is None:
        raise SetupError(f"containerd ended at once; see {logs}/containerd.log.")
    kubelet = components.kubelet(settings, node, programs, runtime.pid)
    ledger.start("kubelet", kubelet, logs / "kubelet.log")
    proxy = components.proxy(settings, node, programs)
    ledger.start("kube-proxy", proxy, logs / "kube-proxy.log")


def _containerd_answers(settings: Settings) -> bool:
    try:
        containers(settings)
    except CommandError:
        return False
    return True


def _api_is_ready(settings: Settings) -> bool:
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


def _wait(what: str, seconds: float, ready: Callable[[], bool], settings: Settings) -> None:
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > deadline:
            raise SetupError(f"{what} is not ready after {seconds} s; see {settings.logs}.")
        time.sleep(0.1)


def _wait_for_deployment(cluster: Cluster, namespace: str, name: str) -> None:
    target = ("rollout", "status", f"deployment/{name}", f"--namespace={namespace}")
    kubectl(cluster, *target, "--timeout=90s")
