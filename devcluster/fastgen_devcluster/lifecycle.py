"""Brings the cluster up and tells how it is."""

import fcntl
import os
from collections.abc import Iterator
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
from fastgen_devcluster.readiness import api_is_ready, wait, wait_for_deployment
from fastgen_devcluster.runtime_store import answers, containers, remove_containers
from fastgen_devcluster.settings import Node, Settings
from fastgen_devcluster.teardown import leftovers, take_down

OF_THE_CLUSTER = (
    "registry",
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "local-path-provisioner",
)
OF_A_NODE = ("containerd", "kubelet", "kube-proxy", "kube-router")


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


def processes(settings: Settings) -> tuple[str, ...]:
    """The names on record of everything that runs when the cluster is up."""
    of_nodes = (node.process(program) for node in settings.nodes for program in OF_A_NODE)
    return (*OF_THE_CLUSTER, *of_nodes)


def status(settings: Settings) -> Status:
    """How the cluster is, without changing anything."""
    ledger = Ledger(settings.records)
    wanted = processes(settings)
    running = tuple(name for name in wanted if ledger.find(name))
    missing = tuple(name for name in wanted if name not in running)
    return Status(running, missing, "kube-apiserver" in running and api_is_ready(settings))


def bring_up(settings: Settings) -> None:
    """Start what does not run yet and wait until pods find one another by name."""
    ensure_packages()
    # Pods live in containerd's mounts and objects in etcd: nothing goes on without these.
    vital = {"etcd", *(node.process("containerd") for node in settings.nodes)}
    if vital & set(status(settings).missing) and leftovers(settings):
        with step("clean up after a cluster that ended halfway"):
            take_down(settings)
    contents = cluster_contents.references(settings)
    _prepare(settings, contents)
    programs = _compile(settings)
    with step("start the control plane"):
        _start_control_plane(settings, programs)
        cluster_contents.ensure_images(contents, programs)
        wait("the API server", 60, lambda: api_is_ready(settings), settings)
    cluster = development(settings)
    with step("start the nodes"):
        manifests = cluster_contents.manifests(settings, contents)
        kubectl(cluster, "apply", "--server-side", "--filename=-", stdin=manifests)
        for node in settings.nodes:
            _start_node(settings, node, programs)
        _start_what_needs_nodes(settings, cluster, programs)
    with step("wait for DNS and Prometheus"):
        wait_for_deployment(cluster, "kube-system", "coredns")
        wait_for_deployment(cluster, "monitoring", "prometheus")


def _prepare(settings: Settings, contents: Contents) -> None:
    """Everything that does not wait for the compiler: then images can be pushed and pulled."""
    ledger, logs = Ledger(settings.records), settings.logs
    ensure_certificates(settings, settings.nodes)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    configuration.write(settings, contents.pause, contents.volume, memory // 2**20)
    network.create(settings)
    control_groups.create(settings.prefix, [node.group for node in settings.nodes])
    ledger.start("registry", components.registry(settings), logs / "registry.log")
    wait("the registry", 20, lambda: registry.is_serving(settings.registry), settings)
    fresh = [node for node in settings.nodes if not ledger.find(node.process("containerd"))]
    _start_containerds(settings)
    stale = [node for node in fresh if containers(node)]
    for node in stale:
        # Left on record by a crash: containerd must not remember them as having run.
        remove_containers(node)
        ledger.stop([node.process("containerd")], grace_seconds=5)
    _start_containerds(settings)


def _start_containerds(settings: Settings) -> None:
    ledger = Ledger(settings.records)
    for node in settings.nodes:
        name = node.process("containerd")
        ledger.start(name, components.containerd(node), settings.logs / f"{name}.log")
    wait("containerd", 20, lambda: all(map(answers, settings.nodes)), settings)


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


def _start_control_plane(settings: Settings, programs: Programs) -> None:
    ledger, logs = Ledger(settings.records), settings.logs
    if not ledger.find("kube-apiserver"):
        settings.audit_log.unlink(missing_ok=True)
    for name, argv in (
        ("etcd", components.etcd(settings, programs)),
        ("kube-apiserver", components.apiserver(settings, programs)),
        ("kube-controller-manager", components.controller_manager(settings, programs)),
        ("kube-scheduler", components.scheduler(settings, programs)),
    ):
        ledger.start(name, argv, logs / f"{name}.log")


def _start_node(settings: Settings, node: Node, programs: Programs) -> None:
    ledger = Ledger(settings.records)
    runtime = ledger.find(node.process("containerd"))
    if runtime is None:
        log = settings.logs / f"{node.process('containerd')}.log"
        raise SetupError(f"containerd ended at once; see {log}.")
    for program, argv in (
        ("kubelet", components.kubelet(node, programs, runtime.pid)),
        ("kube-proxy", components.proxy(settings, node, programs)),
    ):
        name = node.process(program)
        ledger.start(name, argv, settings.logs / f"{name}.log")


def _start_what_needs_nodes(settings: Settings, cluster: Cluster, programs: Programs) -> None:
    names = [f"node/{node.name}" for node in settings.nodes]
    for name in names:
        # One by one: of several it reports the first that is not there yet.
        kubectl(cluster, "wait", "--for=create", name, "--timeout=60s")
    ledger, logs = Ledger(settings.records), settings.logs
    for node in settings.nodes:
        name = node.process("kube-router")
        ledger.start(name, components.router(settings, node, programs), logs / f"{name}.log")
    volumes = components.provisioner(settings, programs)
    ledger.start("local-path-provisioner", volumes, logs / "local-path-provisioner.log")
    kubectl(cluster, "wait", "--for=condition=Ready", *names, "--timeout=60s")
