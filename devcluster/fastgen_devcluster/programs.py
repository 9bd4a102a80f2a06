"""Compiles the cluster's Go programs once, from committed go.mod and go.sum."""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fastgen_devcluster.command import CommandError, run
from fastgen_devcluster.errors import SetupError
from fastgen_devcluster.progress import step
from fastgen_devcluster.settings import ROOM
from fastgen_devcluster.toolchain import ensure_go

KUBERNETES_VERSION = "v1.35.4"
HELM_VERSION = "v4.3.1"


@dataclass(frozen=True, slots=True)
class Module:
    """A folder under go/ and how its programs are built."""

    name: str
    packages: tuple[str, ...]
    variables: tuple[str, ...] = ()
    tags: str = ""

    @property
    def source(self) -> Path:
        """The folder with go.mod and go.sum."""
        return ROOM / "go" / self.name

    @property
    def flags(self) -> tuple[str, ...]:
        """What `go build` is told."""
        linker = " ".join(["-s -w", *(f"-X {variable}" for variable in self.variables)])
        tags = ("-tags", self.tags) if self.tags else ()
        return ("-mod=readonly", "-trimpath", "-ldflags", linker, *tags)

    def key(self) -> str:
        """A name for what comes out: the same sources and flags give the same key."""
        digest = hashlib.sha256(repr((self.packages, self.flags)).encode())
        for path in sorted(self.source.iterdir()):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
        return digest.hexdigest()[:12]

    def home(self, cache: Path) -> Path:
        """Where the programs are kept."""
        return cache / "bin" / f"{self.name}-{self.key()}"


# Clients misbehave with a server whose version reads v0.0.0, hence the variables.
_VERSION = "k8s.io/component-base/version"
KUBERNETES = Module(
    "kubernetes",
    tuple(
        f"k8s.io/kubernetes/cmd/{program}"
        for program in (
            "kube-apiserver",
            "kube-controller-manager",
            "kube-scheduler",
            "kubelet",
            "kube-proxy",
            "kubectl",
        )
    ),
    (
        f"{_VERSION}.gitVersion={KUBERNETES_VERSION}",
        f"{_VERSION}.gitMajor=1",
        f"{_VERSION}.gitMinor={KUBERNETES_VERSION.split('.')[1]}",
    ),
)
ETCD = Module("etcd", (".",))
COREDNS = Module("coredns", (".",))
HELM = Module(
    "helm",
    ("helm.sh/helm/v4/cmd/helm",),
    (f"helm.sh/helm/v4/internal/version.version={HELM_VERSION}",),
)
PROMETHEUS = Module(
    "prometheus",
    ("github.com/prometheus/prometheus/cmd/prometheus",),
    tags="netgo,remove_all_sd,enable_kubernetes_sd",
)
KUBE_ROUTER = Module("kube-router", ("github.com/cloudnativelabs/kube-router/v2/cmd/kube-router",))
LOCAL_PATH_PROVISIONER = Module(
    "local-path-provisioner", ("github.com/rancher/local-path-provisioner",)
)
MODULES = (KUBERNETES, ETCD, COREDNS, HELM, PROMETHEUS, KUBE_ROUTER, LOCAL_PATH_PROVISIONER)
# Compiled when a test first wants nodes without machines.
KWOK = Module("kwok", ("sigs.k8s.io/kwok/cmd/kwok",))


@dataclass(frozen=True, slots=True)
class Programs:
    """Where each compiled program lies."""

    cache: Path

    def kubernetes(self, program: str) -> Path:
        """One of the six programs of Kubernetes."""
        return KUBERNETES.home(self.cache) / program

    @property
    def etcd(self) -> Path:
        """The store."""
        return ETCD.home(self.cache) / "etcd"

    @property
    def coredns(self) -> Path:
        """The name server."""
        return COREDNS.home(self.cache) / "coredns"

    @property
    def helm(self) -> Path:
        """The package installer."""
        return HELM.home(self.cache) / "helm"

    @property
    def prometheus(self) -> Path:
        """The metrics store."""
        return PROMETHEUS.home(self.cache) / "prometheus"

    @property
    def kube_router(self) -> Path:
        """The enforcer of NetworkPolicies."""
        return KUBE_ROUTER.home(self.cache) / "kube-router"

    @property
    def local_path_provisioner(self) -> Path:
        """The maker of volumes."""
        return LOCAL_PATH_PROVISIONER.home(self.cache) / "local-path-provisioner"

    @property
    def kwok(self) -> Path:
        """The pretender of nodes; not there before somebody asked for its module."""
        return KWOK.home(self.cache) / "kwok"


def missing_modules(cache: Path, modules: Iterable[Module] = MODULES) -> list[Module]:
    """The modules whose programs are not in the cache."""
    return [module for module in modules if not module.home(cache).exists()]


def ensure_programs(cache: Path, modules: Iterable[Module] = MODULES) -> Programs:
    """Compile what is not in the cache, one module after the other."""
    missing = missing_modules(cache, modules)
    if missing:
        go = ensure_go(cache)
        for module in missing:
            with step(f"compile {module.name} (once; kept in {module.home(cache).parent})"):
                _compile(go, cache, module)
    if missing and not missing_modules(cache):
        _drop_scraps(cache)
    return Programs(cache)


def _drop_scraps(cache: Path) -> None:
    # Ten times the size of the programs, and of use again only when a version changes.
    with step("remove what the compiler left over"):
        for name in ("build", "mod"):
            shutil.rmtree(cache / "go" / name, ignore_errors=True)


def _compile(go: Path, cache: Path, module: Module) -> None:
    home = module.home(cache)
    home.parent.mkdir(parents=True, exist_ok=True)
    environment = {
        "CGO_ENABLED": "0",
        # Memory for time: the compiler collects garbage a quarter as often.
        "GOGC": "400",
        "GOCACHE": str(cache / "go" / "build"),
        "GOMODCACHE": str(cache / "go" / "mod"),
        "GOMAXPROCS": str(os.cpu_count() or 1),
        "GOFLAGS": "-modcacherw",
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
    }
    with tempfile.TemporaryDirectory(dir=home.parent) as scratch:
        # The folder appears whole or not at all, so that an interrupted build is no build.
        built = Path(scratch) / "built"
        built.mkdir()
        build = ("build", *module.flags, "-o", f"{built}/", *module.packages)
        try:
            run("nice", go, *build, environment=environment, directory=module.source)
        except CommandError as failure:
            raise SetupError(
                f"{module.name} did not compile; the first time, its modules come from"
                f" {os.environ.get('GOPROXY') or 'the public Go module proxy'}: {failure}"
            ) from None
        built.chmod(0o755)
        built.rename(home)
