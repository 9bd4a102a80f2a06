"""An image's name changes with what goes into it, and with nothing else."""

from pathlib import Path

import pytest

from fastgen_devcluster.dockerfile import Stage, key_of, read_stages
from fastgen_devcluster.settings import REPOSITORY

DOCKERFILE = """\
ARG BASE_IMAGE=outside:1
ARG LIBRARIES=libraries

FROM ${BASE_IMAGE} AS libraries
# why
COPY lock.txt /lock.txt
RUN install

FROM ${BASE_IMAGE} AS wheel
COPY code more /source/

FROM ${LIBRARIES} AS program
RUN --mount=type=bind,from=wheel,source=/wheel,target=/wheel install /wheel
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "lock.txt").write_text("torch")
    for folder in ("code", "more"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "module.py").write_text("x = 1")
    return tmp_path


def keys(root: Path, text: str = DOCKERFILE, base: str = "debian:1") -> dict[str, str]:
    stages = read_stages(text)
    return {name: key_of(name, stages, root, base) for name in stages}


def changed(before: dict[str, str], after: dict[str, str]) -> set[str]:
    return {name for name in before if before[name] != after[name]}


def test_a_stage_knows_its_parent_its_files_and_the_stages_that_it_mounts() -> None:
    stages = read_stages(DOCKERFILE)
    assert stages["program"].parent == "libraries"
    assert stages["program"].others == ("wheel",)
    assert stages["libraries"] == Stage(
        name="libraries",
        parent="outside:1",
        text="FROM ${BASE_IMAGE} AS libraries\nCOPY lock.txt /lock.txt\nRUN install",
        sources=("lock.txt",),
        others=(),
    )
    assert stages["wheel"].sources == ("code", "more")


def test_a_code_change_leaves_the_libraries_where_they_are(tree: Path) -> None:
    before = keys(tree)
    (tree / "more" / "module.py").write_text("x = 2")
    assert changed(before, keys(tree)) == {"wheel", "program"}


def test_a_renamed_file_counts_and_a_cached_one_does_not(tree: Path) -> None:
    before = keys(tree)
    (tree / "code" / "__pycache__").mkdir()
    (tree / "code" / "__pycache__" / "module.pyc").write_bytes(b"compiled")
    assert changed(before, keys(tree)) == set()
    (tree / "code" / "module.py").rename(tree / "code" / "other.py")
    assert changed(before, keys(tree)) == {"wheel", "program"}


def test_a_changed_lock_or_base_reaches_every_stage_above_it(tree: Path) -> None:
    before = keys(tree)
    assert changed(before, keys(tree, base="debian:2")) == set(before)
    (tree / "lock.txt").write_text("torch, newer")
    assert changed(before, keys(tree)) == {"libraries", "program"}


def test_a_comment_rebuilds_nothing(tree: Path) -> None:
    assert changed(keys(tree), keys(tree, DOCKERFILE.replace("# why", "# because"))) == set()


def test_a_stage_without_a_name_is_refused() -> None:
    with pytest.raises(ValueError, match="FROM debian:1"):
        read_stages("FROM debian:1\nRUN true\n")


def test_every_file_that_the_dockerfile_copies_is_in_the_tree() -> None:
    stages = read_stages((REPOSITORY / "Dockerfile").read_text())
    copied = {source for stage in stages.values() for source in stage.sources}
    assert {source for source in copied if not (REPOSITORY / source).exists()} == set()
    assert {"control", "runtime", "runtime-smollm2"} <= set(stages)
