"""What every cluster holds: the sandbox image, DNS and Prometheus."""

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

PAUSE_SOURCE = ROOM / "images" / "pause.c"


@dataclass(frozen=True, slots=True)
class Contents:
    """The references of the images that the cluster itself runs."""

    pause: str
    coredns: str
    prometheus: str


def references(settings: Settings) -> Contents:
    """The images by what goes into them, so that an unchanged one is never made twice."""
    pause = hashlib.sha256(PAUSE_SOURCE.read_bytes()).hexdigest()[:12]
    home = settings.image_home
    return Contents(
        pause=f"{home}/pause:{pause}",
        coredns=f"{home}/coredns:{COREDNS.key()}",
        prometheus=f"{home}/prometheus:{PROMETHEUS.key()}",
    )


def ensure_images(contents: Contents, programs: Programs) -> None:
    """Make and push the images that the registry does not have yet."""
    if not registry.has_image(contents.pause):
        with step("make the sandbox image"), tempfile.TemporaryDirectory() as scratch:
            program = Path(scratch) / "pause"
            run("gcc", "-static", "-Os", "-s", "-o", program, PAUSE_SOURCE)
            _deliver(program, contents.pause)
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
    """The objects of DNS and Prometheus as one document."""
    values = {
        "COREDNS_IMAGE": contents.coredns,
        "PROMETHEUS_IMAGE": contents.prometheus,
        "DNS_ADDRESS": settings.service_address(DNS_NUMBER),
        "PROMETHEUS_ADDRESS": settings.service_address(PROMETHEUS_NUMBER),
    }
    files = sorted((ROOM / "manifests").glob("*.yaml"))
    return "\n---\n".join(Template(path.read_text()).substitute(values) for path in files)
