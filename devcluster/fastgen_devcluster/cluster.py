"""What tests and the demo need to know about the cluster that they run on."""

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fastgen_devcluster.configuration import PROMETHEUS_NUMBER
from fastgen_devcluster.errors import SetupError
from fastgen_devcluster.programs import HELM, KUBERNETES, Programs, ensure_programs
from fastgen_devcluster.settings import Settings

PROMETHEUS_IN_CLUSTER = "http://prometheus.monitoring:9090"


@dataclass(frozen=True, slots=True)
class Cluster:
    """How to reach a cluster, ours or the user's own."""

    kubeconfig: Path
    registry: str
    kubectl: Path
    helm: Path
    # As this machine reaches it; nothing when the user's own cluster did not name one.
    prometheus_url: str | None
    # Where pods reach this machine; nothing when that is not known.
    host_address: str | None
    # Nothing when the cluster is the user's own.
    audit_log: Path | None
    is_own: bool

    @classmethod
    def current(cls, environment: Mapping[str, str] = os.environ) -> "Cluster":
        """The cluster that FASTGEN_KUBECONFIG names, else the development cluster."""
        settings = Settings.from_environment(environment)
        kubeconfig = own_kubeconfig(environment)
        if not kubeconfig:
            return development(settings)
        if not Path(kubeconfig).is_file():
            raise SetupError(f"FASTGEN_KUBECONFIG names {kubeconfig}, and no such file is there.")
        return cls(
            kubeconfig=Path(kubeconfig).resolve(),
            registry=image_home(environment),
            kubectl=_find_client("kubectl", settings, environment),
            helm=_find_client("helm", settings, environment),
            prometheus_url=environment.get("FASTGEN_PROMETHEUS_URL"),
            host_address=environment.get("FASTGEN_HOST_ADDRESS"),
            audit_log=None,
            is_own=True,
        )


def own_kubeconfig(environment: Mapping[str, str] = os.environ) -> str | None:
    """The credentials of the user's own cluster, or nothing for the development cluster."""
    return environment.get("FASTGEN_KUBECONFIG") or None


def image_home(environment: Mapping[str, str] = os.environ) -> str:
    """The registry and path that references of images start with."""
    if not own_kubeconfig(environment):
        return Settings.from_environment(environment).image_home
    registry = environment.get("FASTGEN_REGISTRY")
    if not registry:
        raise SetupError("Set FASTGEN_REGISTRY to a registry that your cluster pulls from.")
    return registry.rstrip("/")


def audit_log_path() -> Path:
    """The audit log of the development cluster: each write, one JSON object per line."""
    return Settings.from_environment().audit_log


def development(settings: Settings) -> Cluster:
    """The development cluster of these settings; raises SetupError before its first `up`."""
    if not settings.kubeconfig.exists():
        raise SetupError("No cluster yet: run `python -m fastgen_devcluster up`.")
    programs = Programs(settings.cache)
    return Cluster(
        kubeconfig=settings.kubeconfig,
        registry=settings.image_home,
        kubectl=programs.kubernetes("kubectl"),
        helm=programs.helm,
        prometheus_url=f"http://{settings.service_address(PROMETHEUS_NUMBER)}:9090",
        host_address=settings.host_address,
        audit_log=settings.audit_log,
        is_own=False,
    )


def _find_client(name: str, settings: Settings, environment: Mapping[str, str]) -> Path:
    on_path = shutil.which(name, path=environment.get("PATH"))
    if on_path:
        return Path(on_path)
    programs = ensure_programs(settings.cache, (KUBERNETES if name == "kubectl" else HELM,))
    return programs.kubernetes(name) if name == "kubectl" else programs.helm
