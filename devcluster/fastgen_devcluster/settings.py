"""Where the cluster lives on this machine: directories, names and addresses."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fastgen_devcluster.errors import SetupError

REPOSITORY = Path(__file__).resolve().parents[2]
ROOM = REPOSITORY / "devcluster"

API_PORT = 6443
REGISTRY_PORT = 5000
MAX_INDEX = 15
NODE_COUNT = 2


@dataclass(frozen=True, slots=True)
class Node:
    """One kubelet and containerd with their namespace, directory and share of the addresses."""

    number: int
    name: str
    address: str
    pod_cidr: str
    # What the node's programs keep; the images in it outlive `down`.
    home: Path
    # Below every hierarchy of control groups.
    group: str

    @property
    def netns(self) -> Path:
        """The file that keeps the node's network namespace alive."""
        return network_namespace(self.name)

    @property
    def zone(self) -> str:
        """The value of its label topology.kubernetes.io/zone."""
        return f"zone-{self.number}"

    @property
    def containerd_socket(self) -> Path:
        """Where the node's containerd listens."""
        return self.home / "containerd" / "sock"

    def process(self, program: str) -> str:
        """The name on record of the process that runs this program for the node."""
        return f"{program}-{self.number}"


def network_namespace(name: str) -> Path:
    """The file that keeps the network namespace of this name alive."""
    return Path("/run/netns") / name


@dataclass(frozen=True, slots=True)
class Settings:
    """The directories and addresses of one cluster; the index keeps clusters on a machine apart."""

    state: Path
    cache: Path
    index: int = 0

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "Settings":
        """Read FASTGEN_STATE, FASTGEN_CACHE and FASTGEN_DEVCLUSTER_INDEX."""
        caches = environment.get("FASTGEN_CACHE") or environment.get("XDG_CACHE_HOME")
        text = environment.get("FASTGEN_DEVCLUSTER_INDEX", "0")
        if not text.isdigit() or int(text) > MAX_INDEX:
            raise SetupError(f"FASTGEN_DEVCLUSTER_INDEX must be 0 to {MAX_INDEX}, not {text!r}.")
        return cls(
            state=Path(environment.get("FASTGEN_STATE") or "/var/lib/fastgen-devcluster"),
            cache=Path(caches or Path.home() / ".cache") / "fastgen",
            index=int(text),
        )

    @property
    def prefix(self) -> str:
        """What the names of namespaces, interfaces and cgroups start with."""
        return "fastgen" if self.index == 0 else f"fastgen{self.index}"

    @property
    def switch(self) -> str:
        """The network namespace in which the cables of the nodes and of this machine meet."""
        return f"{self.prefix}-switch"

    @property
    def host_interface(self) -> str:
        """The host's end of the cable to the cluster."""
        return f"{self.prefix}-host"

    @property
    def host_address(self) -> str:
        """Where pods and nodes reach this machine."""
        return f"10.197.{self.index}.1"

    @property
    def node_cidr(self) -> str:
        """The addresses of this machine and of the nodes on their cable."""
        return f"10.197.{self.index}.0/24"

    @property
    def service_cidr(self) -> str:
        """The addresses of Services, routed from the host."""
        return f"10.198.{16 * self.index}.0/20"

    @property
    def pod_cidr(self) -> str:
        """The addresses of all pods, routed from the host."""
        return f"10.199.{16 * self.index}.0/20"

    def service_address(self, number: int) -> str:
        """A fixed ClusterIP by its number in the first 256."""
        return f"10.198.{16 * self.index}.{number}"

    def node(self, number: int = 0) -> Node:
        """The node of this number; node 0 also runs the control plane and the registry."""
        name = f"{self.prefix}-{number}"
        return Node(
            number=number,
            name=name,
            address=f"10.197.{self.index}.{2 + number}",
            pod_cidr=f"10.199.{16 * self.index + number}.0/24",
            home=self.state / f"node-{number}",
            group=f"{self.prefix}/{name}",
        )

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes, the one with the control plane first."""
        return tuple(self.node(number) for number in range(NODE_COUNT))

    @property
    def registry(self) -> str:
        """The registry, under the same address for the host and for containerd."""
        return f"{self.node().address}:{REGISTRY_PORT}"

    @property
    def image_home(self) -> str:
        """What the references of images in the cluster's registry start with."""
        return f"{self.registry}/fastgen"

    @property
    def kubeconfig(self) -> Path:
        """The cluster administrator's credentials."""
        return self.state / "admin.kubeconfig"

    @property
    def certificates(self) -> Path:
        """Keys and certificates, kept over `down`."""
        return self.state / "pki"

    @property
    def logs(self) -> Path:
        """One file per process, and the audit log."""
        return self.state / "log"

    @property
    def audit_log(self) -> Path:
        """Every write that the API server answered, one JSON object per line."""
        return self.logs / "audit.log"

    @property
    def records(self) -> Path:
        """The processes that were started."""
        return self.state / "run"
