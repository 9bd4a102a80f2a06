"""Tells whether this container was allotted GPUs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

UNDECIDED: Final = frozenset({"", "all", "none", "void"})
"""Values of NVIDIA_VISIBLE_DEVICES that images set themselves; a device plugin writes names."""


def has_gpus(environment: Mapping[str, str], devices: Path = Path("/dev")) -> bool:
    """Whether a device plugin named GPUs, or their device files are here."""
    named = environment.get("NVIDIA_VISIBLE_DEVICES", "").strip().lower()
    return named not in UNDECIDED or any(devices.glob("nvidia[0-9]*"))
