"""The command lines of the cluster's processes."""

from collections.abc import Sequence
from pathlib import Path

from fastgen_devcluster.configuration import PRIVATE_DIRECTORIES
from fastgen_devcluster.network import inside
from fastgen_devcluster.programs import Programs
from fastgen_devcluster.settings import API_PORT, Node, Settings

Argv = Sequence[str | Path]

# On a busy machine the API stays responsive; without the right to it, `nice` goes on as usual.
FIRST = ("nice", "-n", "-5")
STORE_ADDRESS = "http://127.0.0.1:2379"


def registry(settings: Settings) -> Argv:
    """Keeps images, over `down` too."""
    return inside(
        settings.node().netns, "docker-registry", "serve", settings.state / "registry.yaml"
    )


def etcd(settings: Settings, programs: Programs) -> Argv:
    """Keeps the cluster's objects until `down`; what a crash may lose is not worth the fsyncs."""
    return inside(
        settings.node().netns,
        *FIRST,
        programs.etcd,
        f"--data-dir={settings.state}/etcd",
        f"--listen-client-urls={STORE_ADDRESS}",
        f"--advertise-client-urls={STORE_ADDRESS}",
        "--listen-peer-urls=http://127.0.0.1:2380",
        "--log-level=warn",
        "--unsafe-no-fsync",
    )


def apiserver(settings: Settings, programs: Programs) -> Argv:
    """Serves the API."""
    pki = settings.certificates
    return inside(
        settings.node().netns,
        *FIRST,
        programs.kubernetes("kube-apiserver"),
        f"--etcd-servers={STORE_ADDRESS}",
        f"--advertise-address={settings.node().address}",
        f"--secure-port={API_PORT}",
        f"--tls-cert-file={pki}/apiserver.crt",
        f"--tls-private-key-file={pki}/apiserver.key",
        f"--client-ca-file={pki}/ca.crt",
        f"--kubelet-client-certificate={pki}/admin.crt",
        f"--kubelet-client-key={pki}/admin.key",
        f"--kubelet-certificate-authority={pki}/ca.crt",
        # A node's name resolves nowhere.
        "--kubelet-preferred-address-types=InternalIP",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={pki}/service-accounts.pub",
        f"--service-account-signing-key-file={pki}/service-accounts.key",
        f"--service-cluster-ip-range={settings.service_cidr}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        f"--audit-policy-file={settings.state}/audit-policy.yaml",
        f"--audit-log-path={settings.audit_log}",
        "--audit-log-maxsize=0",
    )


def controller_manager(settings: Settings, programs: Programs) -> Argv:
    """Runs Kubernetes' own controllers."""
    pki = settings.certificates
    return inside(
        settings.node().netns,
        programs.kubernetes("kube-controller-manager"),
        f"--kubeconfig={settings.state}/kube-controller-manager.kubeconfig",
        f"--service-account-private-key-file={pki}/service-accounts.key",
        f"--root-ca-file={pki}/ca.crt",
        f"--cluster-signing-cert-file={pki}/ca.crt",
        f"--cluster-signing-key-file={pki}/ca.key",
        f"--cluster-cidr={settings.pod_cidr}",
        "--allocate-node-cidrs=false",
        "--use-service-account-credentials",
        "--leader-elect=false",
    )


def scheduler(settings: Settings, programs: Programs) -> Argv:
    """Puts pods on nodes."""
    program = programs.kubernetes("kube-scheduler")
    return inside(
        settings.node().netns,
        program,
        f"--kubeconfig={settings.state}/kube-scheduler.kubeconfig",
        "--leader-elect=false",
    )


def containerd(node: Node) -> Argv:
    """Runs containers, in mounts of its own that vanish with the last process in them."""
    hide = "".join(
        f"mkdir -p {directory} && mount -t tmpfs -o mode=755 fastgen {directory} && "
        for directory in PRIVATE_DIRECTORIES
    )
    script = f"{hide}exec containerd --config {node.home}/containerd.toml"
    return inside(node.netns, "unshare", "--mount", "--propagation=private", "sh", "-c", script)


def kubelet(node: Node, programs: Programs, containerd_pid: int) -> Argv:
    """Runs the node's pods, and sees the mounts that containerd sees."""
    return (
        "nsenter",
        f"--net={node.netns}",
        f"--mount=/proc/{containerd_pid}/ns/mnt",
        *FIRST,
        programs.kubernetes("kubelet"),
        f"--config={node.home}/kubelet.yaml",
        f"--kubeconfig={node.home}/kubelet.kubeconfig",
        f"--root-dir={node.home}/kubelet",
        f"--hostname-override={node.name}",
        f"--node-ip={node.address}",
        f"--node-labels=topology.kubernetes.io/zone={node.zone}",
    )


def proxy(settings: Settings, node: Node, programs: Programs) -> Argv:
    """Turns Service addresses into pod addresses."""
    return inside(
        node.netns,
        programs.kubernetes("kube-proxy"),
        f"--kubeconfig={settings.state}/kube-proxy.kubeconfig",
        f"--hostname-override={node.name}",
        f"--cluster-cidr={settings.pod_cidr}",
        "--proxy-mode=iptables",
        # The connection table's size belongs to the host.
        "--conntrack-max-per-core=0",
        "--conntrack-tcp-timeout-established=0",
        "--conntrack-tcp-timeout-close-wait=0",
    )


def router(settings: Settings, node: Node, programs: Programs) -> Argv:
    """Enforces NetworkPolicies for the node's pods, and does nothing else that it could."""
    return inside(
        node.netns,
        programs.kube_router,
        f"--kubeconfig={settings.state}/kube-router.kubeconfig",
        f"--hostname-override={node.name}",
        f"--service-cluster-ip-range={settings.service_cidr}",
        "--run-firewall=true",
        "--run-router=false",
        "--run-service-proxy=false",
        "--run-loadbalancer=false",
    )


def provisioner(settings: Settings, programs: Programs) -> Argv:
    """Makes a directory for each claim on a volume and removes it with the volume."""
    return inside(
        settings.node().netns,
        programs.local_path_provisioner,
        "start",
        f"--kubeconfig={settings.state}/local-path-provisioner.kubeconfig",
        f"--config={settings.state}/storage.json",
        f"--helper-pod-file={settings.state}/storage-pod.yaml",
        "--namespace=storage",
        "--service-account-name=default",
    )
