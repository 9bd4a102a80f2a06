"""Renders the configuration files of the cluster's programs."""

import base64
import json
from pathlib import Path

import yaml

from fastgen_devcluster.settings import API_PORT, Node, Settings

DNS_NUMBER = 10
PROMETHEUS_NUMBER = 90
# Strangers to a private mount namespace: what containerd and kubelets would share with others.
PRIVATE_DIRECTORIES = (
    "/run/containerd",
    "/run/netns",
    "/var/lib/cni",
    "/var/lib/kubelet",
    "/var/log/containers",
)


def kubeconfig(server: str, authority: bytes, certificate: bytes, key: bytes) -> str:
    """Credentials in one file, with nothing left to look up elsewhere."""

    def encode(content: bytes) -> str:
        return base64.b64encode(content).decode()

    cluster = {"server": server, "certificate-authority-data": encode(authority)}
    user = {"client-certificate-data": encode(certificate), "client-key-data": encode(key)}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "fastgen", "cluster": cluster}],
        "users": [{"name": "fastgen", "user": user}],
        "contexts": [{"name": "fastgen", "context": {"cluster": "fastgen", "user": "fastgen"}}],
        "current-context": "fastgen",
    }
    return yaml.safe_dump(document, sort_keys=False)


def audit_policy() -> str:
    """Who wrote what, without the contents; reads would drown it."""
    writes = ["create", "update", "patch", "delete", "deletecollection"]
    document = {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [{"level": "Metadata", "verbs": writes}, {"level": "None"}],
    }
    return yaml.safe_dump(document, sort_keys=False)


def containerd(settings: Settings, pause_image: str) -> str:
    """The container runtime's own state, registry and network directories."""
    home = settings.state / "containerd"
    return f"""version = 2
root = "{home}/root"
state = "{home}/state"
[grpc]
  address = "{settings.containerd_socket}"
[plugins."io.containerd.grpc.v1.cri"]
  # A sandbox without CAP_SYS_RESOURCE cannot lower a score.
  restrict_oom_score_adj = true
  sandbox_image = "{pause_image}"
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "{settings.state}/registries"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{settings.state}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    # The registry keeps the compressed layers; a second copy would only fill the disk.
    discard_unpacked_layers = true
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
"""


def registry_hosts(registry: str) -> str:
    """Lets containerd pull from the registry without TLS."""
    return f"""server = "http://{registry}"
[host."http://{registry}"]
  capabilities = ["pull", "resolve"]
"""


def registry_server(settings: Settings) -> str:
    """The registry's storage and address."""
    document = {
        "version": "0.1",
        "log": {"level": "error", "accesslog": {"disabled": True}},
        "storage": {
            "cache": {"blobdescriptor": "inmemory"},
            "filesystem": {"rootdirectory": str(settings.state / "registry")},
            "maintenance": {"uploadpurging": {"enabled": False}},
        },
        "http": {"addr": settings.registry},
    }
    return yaml.safe_dump(document, sort_keys=False)


def pod_network(settings: Settings, node: Node) -> str:
    """A bridge per node; addresses outside the cluster stay out of reach, on purpose."""
    addresses = {
        "type": "host-local",
        "dataDir": str(settings.state / "addresses" / node.name),
        "ranges": [[{"subnet": node.pod_cidr}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "ipMasq": False,
        "hairpinMode": True,
        "ipam": addresses,
    }
    return json.dumps({"cniVersion": "0.4.0", "name": node.name, "plugins": [bridge]})


def kubelet(settings: Settings, node: Node) -> str:
    """A kubelet for a machine that it shares with everything else."""
    pki = settings.certificates
    document = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "x509": {"clientCAFile": str(pki / "ca.crt")},
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
        },
        "authorization": {"mode": "Webhook"},
        "clusterDomain": "cluster.local",
        "clusterDNS": [settings.service_address(DNS_NUMBER)],
        "containerRuntimeEndpoint": f"unix://{settings.containerd_socket}",
        "tlsCertFile": str(pki / f"kubelet-{node.name}.crt"),
        "tlsPrivateKeyFile": str(pki / f"kubelet-{node.name}.key"),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{node.name}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "enforceNodeAllocatable": [],
        "oomScoreAdj": 0,
        "podLogsDir": str(settings.state / "pods"),
        "resolvConf": "",
        "serializeImagePulls": False,
        # A full disk is the developer's to clean, image by image: the sandbox image is among them.
        "evictionHard": {},
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
    }
    return yaml.safe_dump(document, sort_keys=False)


def write(settings: Settings, node: Node, pause_image: str) -> None:
    """Write every configuration file."""
    state = settings.state
    files = {
        "audit-policy.yaml": audit_policy(),
        "containerd.toml": containerd(settings, pause_image),
        "registry.yaml": registry_server(settings),
        f"registries/{settings.registry}/hosts.toml": registry_hosts(settings.registry),
        "cni/10-fastgen.conflist": pod_network(settings, node),
        f"kubelet-{node.name}.yaml": kubelet(settings, node),
    }
    users = ("admin", "kube-controller-manager", "kube-scheduler", "kube-proxy")
    pki = settings.certificates
    server = f"https://{node.address}:{API_PORT}"
    for user in (*users, f"kubelet-{node.name}"):
        certificate, key = pki / f"{user}.crt", pki / f"{user}.key"
        files[f"{user}.kubeconfig"] = kubeconfig(
            server, (pki / "ca.crt").read_bytes(), certificate.read_bytes(), key.read_bytes()
        )
    for name, content in files.items():
        _write(state / name, content)


def _write(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.write_text(content)
