"""What every cluster holds: a few small images, DNS, Prometheus, and the rights of the rest."""

import hashlib
import tempfile
from dataclasses import dataclass
from pathlib import Path
from string import Template

from fastgen_devcluster import buildah, registry
from fastgen_devcluster.command import run
from fastgen_devcluster.configuration import DNS_NUMBER, PROMETHEUS_NUMBER
from fastgen_devcluster.programs import COREDNS, PROMETHEUS, Programs
from fastgen_devcluster.progress import step
from fastgen_devcluster.settings import ROOM, Settings

# Each becomes one static program: the pods' sandbox, and what makes and removes volumes.
PAUSE_SOURCE = ROOM / "images" / "pause.c"
VOLUME_SOURCE = ROOM / "images" / "volume.c"


@dataclass(frozen=True, slots=True)
class Contents:
    """The references of the images that the cluster itself runs."""

    pause: str
    coredns: str
    prometheus: str
    volume: str


def references(settings: Settings) -> Contents:
    """The images by what goes into them, so that an unchanged one is never made twice."""
    home = settings.image_home
    return Contents(
        pause=f"{home}/pause:{_key(PAUSE_SOURCE)}",
        coredns=f"{home}/coredns:{COREDNS.key()}",
        prometheus=f"{home}/prometheus:{PROMETHEUS.key()}",
        volume=f"{home}/volume:{_key(VOLUME_SOURCE)}",
    )


def _key(source: Path) -> str:
    return hashlib.sha256(source.read_bytes()).hexdigest()[:12]


def ensure_images(contents: Contents, programs: Programs) -> None:
    """Make and push the images that the registry does not have yet."""
    for reference, source in ((contents.pause, PAUSE_SOURCE), (contents.volume, VOLUME_SOURCE)):
        if not registry.has_image(reference):
            with step(f"make the {source.stem} image"), tempfile.TemporaryDirectory() as scratch:
                program = Path(scratch) / source.stem
                run("gcc", "-static", "-Os", "-s", "-o", program, source)
                _deliver(program, reference)
    for reference, program in (
        (contents.coredns, programs.coredns),
        (contents.prometheus, programs.prometheus),
    ):
        if not registry.has_image(reference):
            with step(f"make the {program.name} image"):
                _deliver(program, reference)


def _deliver(program: Path, reference: str) -> None:
    buildah.pack(program, reference, f"/{program.name}")
    buildah.push(reference, reference)
    buildah.remove(reference)


def manifests(settings: Settings, contents: Contents) -> str:
    """The objects of all of them as one document."""
    values = {
        "COREDNS_IMAGE": contents.coredns,
        "PROMETHEUS_IMAGE": contents.prometheus,
        "DNS_ADDRESS": settings.service_address(DNS_NUMBER),
        "PROMETHEUS_ADDRESS": settings.service_address(PROMETHEUS_NUMBER),
    }
    files = sorted((ROOM / "manifests").glob("*.yaml"))
    return "\n---\n".join(Template(path.read_text()).substitute(values) for path in files)
