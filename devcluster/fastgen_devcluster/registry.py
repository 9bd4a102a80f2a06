"""Asks the development cluster's own registry what it has."""

import urllib.error
import urllib.request
from http import HTTPStatus

from fastgen_devcluster.errors import SetupError

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
    """Whether the registry of this reference has the image; raises SetupError without a registry.

    Only for the registry of the development cluster, which knows neither TLS nor logins.
    """
    registry, _, rest = reference.partition("/")
    name, _, tag = rest.rpartition(":")
    try:
        with _open("HEAD", f"http://{registry}/v2/{name}/manifests/{tag}"):
            return True
    except OSError as error:
        if isinstance(error, urllib.error.HTTPError) and error.code == HTTPStatus.NOT_FOUND:
            return False
        raise SetupError(
            f"The cluster's registry at {registry} does not answer ({error}):"
            " run `python -m fastgen_devcluster up`."
        ) from None


def _open(method: str, url: str) -> "urllib.request._UrlopenRet":
    # The cluster is never behind a proxy, whatever the environment says.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    headers = {"Accept": ", ".join(MANIFEST_TYPES)}
    return opener.open(urllib.request.Request(url, method=method, headers=headers), timeout=2)
