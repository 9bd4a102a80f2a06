"""Renders the configuration files of the cluster's programs."""

import base64
import json
from pathlib import Path

import yaml

from fastgen_devcluster.settings import API_PORT, Node, Settings

DNS_NUMBER = 10
PROMETHEUS_NUMBER = 90
# Whose credentials lie in a file NAME.kubeconfig.
USERS = (
    "admin",
    "kube-controller-manager",
    "kube-proxy",
    "kube-router",
    "kube-scheduler",
    "local-path-provisioner",
)
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


def containerd(settings: Settings, node: Node, pause_image: str) -> str:
    """The container runtime's own state, registry and network directories."""
    home = node.home / "containerd"
    return f"""version = 2
root = "{home}/root"
state = "{home}/state"
[grpc]
  address = "{node.containerd_socket}"
[plugins."io.containerd.grpc.v1.cri"]
  # A sandbox without CAP_SYS_RESOURCE cannot lower a score.
  restrict_oom_score_adj = true
  sandbox_image = "{pause_image}"
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "{settings.state}/registries"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{node.home}/cni"
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


def pod_network(node: Node) -> str:
    """A bridge per node; addresses outside the cluster stay out of reach, on purpose."""
    addresses = {
        "type": "host-local",
        "dataDir": str(node.home / "addresses"),
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


def kubelet(settings: Settings, node: Node, machine_mebibytes: int) -> str:
    """A kubelet for a machine that it shares with everything else.

    It takes the machine's memory for its own, and offers its share of it to pods.
    """
    nodes = len(settings.nodes)
    others_mebibytes = machine_mebibytes * (nodes - 1) // nodes
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
        "containerRuntimeEndpoint": f"unix://{node.containerd_socket}",
        "tlsCertFile": str(pki / f"kubelet-{node.name}.crt"),
        "tlsPrivateKeyFile": str(pki / f"kubelet-{node.name}.key"),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{node.group}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "systemReserved": {"memory": f"{others_mebibytes}Mi"},
        "enforceNodeAllocatable": [],
        "oomScoreAdj": 0,
        "podLogsDir": str(node.home / "pods"),
        "resolvConf": "",
        "serializeImagePulls": False,
        # A full disk is the developer's to clean, image by image: the sandbox image is among them.
        "evictionHard": {},
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
    }
    return yaml.safe_dump(document, sort_keys=False)


def storage(settings: Settings) -> str:
    """Where the provisioner puts the volumes of each StorageClass of the manifests.

    All nodes share the machine's disk: what ties a volume of the first class to its node is only
    that it says so.
    """
    here = [{"node": node.name, "paths": [str(node.home / "volumes")]} for node in settings.nodes]
    classes = {
        "local-path": {"nodePathMap": here},
        "shared": {"sharedFileSystemPath": str(settings.state / "volumes")},
    }
    command = {"setupCommand": "/volume", "teardownCommand": "/volume"}
    return json.dumps({**command, "storageClassConfigs": classes})


def storage_pod(image: str) -> str:
    """The pod that makes or removes a volume's directory on its node."""
    # It tolerates every taint; a node without a machine would only pretend to have done it.
    pretended = {"key": "type", "operator": "NotIn", "values": ["kwok"]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [pretended]}]}
    document = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "volume"},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}},
            "containers": [{"name": "volume", "image": image, "imagePullPolicy": "IfNotPresent"}],
        },
    }
    return yaml.safe_dump(document, sort_keys=False)


def write(settings: Settings, pause_image: str, volume_image: str, machine_mebibytes: int) -> None:
    """Write every configuration file."""
    files = {
        "audit-policy.yaml": audit_policy(),
        "registry.yaml": registry_server(settings),
        "storage.json": storage(settings),
        "storage-pod.yaml": storage_pod(volume_image),
        f"registries/{settings.registry}/hosts.toml": registry_hosts(settings.registry),
    }
    for user in USERS:
        files[f"{user}.kubeconfig"] = _credentials(settings, user)
    for node in settings.nodes:
        home = node.home.name
        files |= {
            f"{home}/containerd.toml": containerd(settings, node, pause_image),
            f"{home}/cni/10-fastgen.conflist": pod_network(node),
            f"{home}/kubelet.yaml": kubelet(settings, node, machine_mebibytes),
            f"{home}/kubelet.kubeconfig": _credentials(settings, f"kubelet-{node.name}"),
        }
    for name, content in files.items():
        _write(settings.state / name, content)


def _credentials(settings: Settings, user: str) -> str:
    pki = settings.certificates
    files = ("ca.crt", f"{user}.crt", f"{user}.key")
    server = f"https://{settings.node().address}:{API_PORT}"
    return kubeconfig(server, *((pki / file).read_bytes() for file in files))


def _write(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.write_text(content)
