"""What the package asks for: ranges for the kernels in other programs, pins for the engine."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
RANGES = {each.name: each.specifier for each in map(Requirement, EXTRAS["kernels"])}


def test_the_kernels_alone_ask_for_ranges() -> None:
    """With an upper end: Triton's language and its compiler's inner parts change."""
    assert sorted(RANGES) == ["numpy", "torch", "triton"]
    for name, specifier in RANGES.items():
        assert {each.operator for each in specifier} == {">=", "<"}, name


def test_the_engines_pins_lie_in_the_kernels_ranges() -> None:
    pins = {each.name: each.specifier for each in map(Requirement, EXTRAS["runtime"])}
    for name, specifier in RANGES.items():
        (pin,) = pins[name]
        assert pin.operator == "=="
        assert pin.version in specifier


@pytest.mark.parametrize("lock", ["dev", "runtime"])
def test_the_locks_hold_the_pins(lock: str) -> None:
    """The virtual environment and the image are made of them."""
    locked = (ROOT / f"requirements/{lock}.txt").read_text()
    for each in map(Requirement, EXTRAS["runtime"]):
        if each.name in RANGES:
            assert re.search(rf"^{each.name}{each.specifier} ", locked, re.MULTILINE), each
