"""Makes the cluster's certificate authority and everybody's certificates."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fastgen_devcluster.command import run
from fastgen_devcluster.progress import step
from fastgen_devcluster.settings import Node, Settings

VALID_DAYS = "3650"
NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@dataclass(frozen=True, slots=True)
class Holder:
    """Whom a certificate names."""

    name: str
    subject: str
    addresses: tuple[str, ...] = ()


def holders(settings: Settings, nodes: Sequence[Node]) -> list[Holder]:
    """Everybody who needs a certificate."""
    server = (
        "DNS:localhost",
        "DNS:kubernetes.default.svc",
        "IP:127.0.0.1",
        f"IP:{nodes[0].address}",
        f"IP:{settings.service_address(1)}",
    )
    return [
        Holder("apiserver", "/CN=kube-apiserver", server),
        Holder("admin", "/O=system:masters/CN=admin"),
        Holder("kube-controller-manager", "/CN=system:kube-controller-manager"),
        Holder("kube-scheduler", "/CN=system:kube-scheduler"),
        Holder("kube-proxy", "/CN=system:kube-proxy"),
        Holder("kube-router", "/CN=kube-router"),
        Holder("local-path-provisioner", "/CN=local-path-provisioner"),
        *(
            Holder(
                f"kubelet-{node.name}",
                f"/O=system:nodes/CN=system:node:{node.name}",
                (f"DNS:{node.name}", f"IP:{node.address}"),
            )
            for node in nodes
        ),
    ]


def ensure_certificates(settings: Settings, nodes: Sequence[Node]) -> None:
    """Make what is missing; keys are kept, so that a kubeconfig stays valid over `down`."""
    directory = settings.certificates
    # Written last: without it an earlier attempt was cut short.
    complete = directory / "complete"
    wanted = repr(holders(settings, nodes))
    if complete.exists() and complete.read_text() == wanted:
        return
    with step("make certificates"):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        complete.unlink(missing_ok=True)
        authority = ("openssl", "req", "-x509", *NEW_KEY, "-keyout", directory / "ca.key")
        subject = ("-subj", f"/CN={settings.prefix}-ca")
        run(*authority, "-out", directory / "ca.crt", "-days", VALID_DAYS, *subject)
        for holder in holders(settings, nodes):
            _sign(directory, holder)
        tokens = directory / "service-accounts.key"
        run("openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", tokens)
        run("openssl", "ec", "-in", tokens, "-pubout", "-out", tokens.with_suffix(".pub"))
        complete.write_text(wanted)


def _sign(directory: Path, holder: Holder) -> None:
    key, certificate = directory / f"{holder.name}.key", directory / f"{holder.name}.crt"
    request = run("openssl", "req", *NEW_KEY, "-keyout", key, "-subj", holder.subject)
    extensions = directory / f"{holder.name}.ext"
    lines = ["keyUsage=digitalSignature,keyEncipherment", "extendedKeyUsage=serverAuth,clientAuth"]
    if holder.addresses:
        lines.append(f"subjectAltName={','.join(holder.addresses)}")
    extensions.write_text("\n".join(lines))
    authority = ("-CA", directory / "ca.crt", "-CAkey", directory / "ca.key", "-CAcreateserial")
    sign = ("openssl", "x509", "-req", *authority, "-days", VALID_DAYS, "-extfile", extensions)
    run(*sign, "-out", certificate, stdin=request)
    extensions.unlink()
