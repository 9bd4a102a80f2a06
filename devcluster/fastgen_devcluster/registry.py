"""Asks an image registry what it has."""

import urllib.error
import urllib.request
from http import HTTPStatus

MANIFEST_TYPES = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)


def is_serving(registry: str) -> bool:
    """Whether the registry answers."""
    try:
        with _open("GET", f"http://{registry}/v2/"):
            return True
    except OSError:
        return False


def has_image(reference: str) -> bool:
    """Whether the registry of this reference has the image."""
    registry, _, rest = reference.partition("/")
    name, _, tag = rest.rpartition(":")
    try:
        with _open("HEAD", f"http://{registry}/v2/{name}/manifests/{tag}"):
            return True
    except urllib.error.HTTPError as error:
        if error.code == HTTPStatus.NOT_FOUND:
            return False
        raise


def _open(method: str, url: str) -> "urllib.request._UrlopenRet":
    # The cluster is never behind a proxy, whatever the environment says.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    headers = {"Accept": ", ".join(MANIFEST_TYPES)}
    return opener.open(urllib.request.Request(url, method=method, headers=headers), timeout=2)
