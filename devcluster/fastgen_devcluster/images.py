"""Builds the images of the Dockerfile, each layer only when what goes into it has changed."""

import fcntl
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from fastgen_devcluster import base_image, buildah, registry, runtime_store
from fastgen_devcluster.cluster import image_home, own_kubeconfig
from fastgen_devcluster.dockerfile import key_of, read_stages
from fastgen_devcluster.errors import SetupError
from fastgen_devcluster.packages import ensure_image_packages
from fastgen_devcluster.progress import step
from fastgen_devcluster.settings import REPOSITORY, Settings

CONTROL, RUNTIME = "control", "runtime-smollm2"
LOCAL = "localhost/fastgen/"
# Built before the images, in the order in which they stand on one another.
DEPENDENCIES = (
    "build-dependencies",
    "control-dependencies",
    "runtime-dependencies",
    "smollm2-dependencies",
    "smollm2-step",
)


@dataclass(frozen=True, slots=True)
class Images:
    """Where a cluster finds the images of this tree."""

    control: str
    runtime: str


@dataclass(frozen=True, slots=True)
class Plan:
    """The key of each stage of the Dockerfile, for the sources as they were when it was made."""

    base: str
    keys: dict[str, str]

    @classmethod
    def read(cls) -> "Plan":
        """Take stock of the sources as they are now: they may change while images are built."""
        base = base_image.name()
        stages = read_stages((REPOSITORY / "Dockerfile").read_text())
        keys = {name: key_of(name, stages, REPOSITORY, base) for name in stages}
        return cls(base, keys)

    def local(self, stage: str) -> str:
        """The stage's name in buildah's store."""
        return f"{LOCAL}{stage}:{self.keys[stage]}"


def ensure_dependencies(settings: Settings) -> None:
    """Build the layers below the project's own: minutes the first time, nothing after it."""
    with _locked(settings):
        _build_dependencies(settings, Plan.read())


def build_images() -> Images:
    """Build and push what the cluster's registry does not have, and return the references.

    A push to the user's own registry always happens: buildah alone knows how to log in there, and
    it sends no layer twice.
    """
    settings, home = Settings.from_environment(), image_home()
    plan = Plan.read()
    images = Images(
        control=f"{home}/control:{plan.keys[CONTROL]}",
        runtime=f"{home}/{RUNTIME}:{plan.keys[RUNTIME]}",
    )
    wanted = {CONTROL: images.control, RUNTIME: images.runtime}
    missing = wanted
    if not own_kubeconfig():
        missing = {stage: name for stage, name in wanted.items() if not registry.has_image(name)}
    if missing:
        with _locked(settings):
            _build_dependencies(settings, plan)
            for stage, reference in missing.items():
                _deliver(plan, stage, reference)
            buildah.prune({*DEPENDENCIES, CONTROL, RUNTIME})
    # On a cluster of the user's own the pods wait for their pull.
    if not own_kubeconfig():
        for stage, reference in wanted.items():
            _pull(settings, stage, reference)
    return images


def remove_abandoned(settings: Settings) -> None:
    """Remove what builds that were killed have left; nothing while one is under way."""
    if shutil.which("buildah") is None:
        return
    try:
        with _locked(settings, fcntl.LOCK_NB):
            buildah.remove_abandoned(LOCAL)
    except BlockingIOError:
        return


def load_image(name: str) -> str:
    """Push an image of the local store and return its reference."""
    ensure_image_packages()
    if not buildah.has_image(name):
        raise SetupError(f"buildah knows no image {name!r}; `buildah images` lists them.")
    short = name.rpartition("/")[2]
    reference = f"{image_home()}/{short if ':' in short else f'{short}:latest'}"
    with step(f"push {name}"):
        _push(name, reference)
    return reference


def _deliver(plan: Plan, stage: str, reference: str) -> None:
    if not buildah.has_image(plan.local(stage)):
        with step(f"build the {stage} image"):
            _build(plan, stage)
    with step(f"push the {stage} image"):
        _push(plan.local(stage), reference)


def _pull(settings: Settings, stage: str, reference: str) -> None:
    """Bring an image to the nodes before a pod asks for it."""
    nodes = [node for node in settings.nodes if node.containerd_socket.exists()]
    lacking = [node for node in nodes if not runtime_store.has_image(node, reference)]
    if lacking:
        with step(f"pull the {stage} image to the nodes"), ThreadPoolExecutor() as at_once:
            pulls = [
                at_once.submit(runtime_store.pull, settings, node, reference) for node in lacking
            ]
            for pull in pulls:
                pull.result()


def _push(name: str, reference: str) -> None:
    if own_kubeconfig():
        buildah.push_to_own(name, reference)
    else:
        buildah.push(name, reference)


def _build_dependencies(settings: Settings, plan: Plan) -> None:
    ensure_image_packages()
    base_image.ensure(settings.cache)
    for stage in DEPENDENCIES:
        if not buildah.has_image(plan.local(stage)):
            with step(f"build the {stage} layer (once per lock file)"):
                _build(plan, stage)


def _build(plan: Plan, stage: str) -> None:
    arguments = {"BASE_IMAGE": plan.base}
    for dependency in DEPENDENCIES:
        if dependency != stage and buildah.has_image(plan.local(dependency)):
            arguments[dependency.upper().replace("-", "_")] = plan.local(dependency)
    buildah.build(REPOSITORY, stage, plan.local(stage), arguments)


@contextmanager
def _locked(settings: Settings, flags: int = 0) -> Iterator[None]:
    """One build at a time. flags: `fcntl.LOCK_NB` raises BlockingIOError rather than waiting."""
    settings.cache.mkdir(parents=True, exist_ok=True)
    with (settings.cache / "images.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | flags)
        yield
