"""Certificates of servers that tests start: one authority, and what it has signed."""

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Certificate:
    """PEM files. authority: what clients must trust (SSL_CERT_FILE)."""

    authority: Path
    certificate: Path
    key: Path


def make_certificate(
    folder: Path, hosts: Sequence[str] = ("DNS:localhost", "IP:127.0.0.1")
) -> Certificate:
    """Of a server that clients know by these names, each as `DNS:name` or `IP:address`."""
    made = Certificate(folder / "ca.crt", folder / "server.crt", folder / "server.key")
    request, extensions = folder / "server.csr", folder / "extensions"
    extensions.write_text(f"subjectAltName={','.join(hosts)}\n")
    new_key = ("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    subject, of_authority, days = "/CN=server of a test", "/CN=authority of a test", ("-days", "2")

    def openssl(*arguments: str | Path) -> None:
        subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)

    key_of_authority = folder / "ca.key"
    openssl(
        *new_key,
        "-x509",
        *days,
        "-subj",
        of_authority,
        "-keyout",
        key_of_authority,
        "-out",
        made.authority,
    )
    openssl(*new_key, "-subj", subject, "-keyout", made.key, "-out", request)
    signed_by = ("-CA", made.authority, "-CAkey", key_of_authority, "-CAcreateserial")
    openssl(
        "x509",
        "-req",
        *signed_by,
        *days,
        "-in",
        request,
        "-extfile",
        extensions,
        "-out",
        made.certificate,
    )
    return made
