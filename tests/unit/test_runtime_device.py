"""Which device computes, and what is said of those that cannot."""

import pytest
import torch

from fastgen_runtime.device import found_device
from fastgen_runtime.device.found_device import (
    CPU,
    find_device,
    offer_of,
    parse_driver_version,
)
from fastgen_runtime.device.graphs import size_for, sizes_up_to
from fastgen_runtime.startup_error import StartupError


class Gpus:
    """What torch and the driver tell of the GPUs."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        driver: tuple[int, int] | None,
        capability: tuple[int, int] = (9, 0),
        count: int = 1,
    ) -> None:
        toolkit = found_device.toolkit_version() if driver is None else (13, 0)
        usable = driver is not None and driver[0] >= toolkit[0] and count > 0
        monkeypatch.setattr(found_device, "_driver_version", lambda: driver)
        monkeypatch.setattr(found_device, "toolkit_version", lambda: toolkit)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: usable)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)


def test_no_driver_is_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    Gpus(monkeypatch, None)
    assert find_device(0, {}) == CPU


def test_a_gpu_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    Gpus(monkeypatch, (13, 0), count=2)
    found = find_device(1, {})
    assert (found.kind, found.capability) == ("cuda", (9, 0))


def test_gpus_that_are_hidden_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    Gpus(monkeypatch, (11, 0))
    assert find_device(0, {"CUDA_VISIBLE_DEVICES": ""}) == CPU


@pytest.mark.parametrize(
    ("driver", "capability", "index", "words"),
    [
        ((12, 4), (9, 0), 0, "driver knows CUDA 12.4, and CUDA 13.0 is needed: update the driver"),
        ((13, 0), (7, 5), 0, "compute capability 7.5, and the kernels need 8.0"),
        ((13, 0), (9, 0), 1, "needs 2 GPUs or more, and there are 1: lower it"),
    ],
)
def test_gpus_that_cannot_compute_are_refused(
    monkeypatch: pytest.MonkeyPatch,
    driver: tuple[int, int],
    capability: tuple[int, int],
    index: int,
    words: str,
) -> None:
    Gpus(monkeypatch, driver, capability)
    with pytest.raises(StartupError, match=words):
        find_device(index, {})


def test_versions_of_drivers() -> None:
    assert parse_driver_version(12040) == (12, 4)
    assert parse_driver_version(13000) == (13, 0)


def test_a_cpus_offer_is_the_machines() -> None:
    offer = offer_of(torch.device("cpu"), 80)
    assert offer.memory_percent == 80
    assert 0 < offer.resident_bytes < offer.resident_bytes + offer.available_bytes


@pytest.mark.parametrize(
    ("most", "expected"),
    [
        (1, (1,)),
        (3, (1, 2, 3)),
        (9, (1, 2, 3, 4, 5, 6, 7, 8, 16)),
        (33, (1, 2, 3, 4, 5, 6, 7, 8, 16, 24, 32, 48)),
    ],
)
def test_sizes_of_graphs(most: int, expected: tuple[int, ...]) -> None:
    assert sizes_up_to(most) == expected


def test_few_rows_are_padding() -> None:
    """Every batch finds the smallest graph that holds it; at most seven rows or a third of it."""
    sizes = sizes_up_to(1 << 20)
    assert sizes[-1] == 512
    for rows in range(1, 513):
        size = size_for(rows, sizes)
        assert size is not None
        assert size >= rows
        assert size - rows < max(8, size / 3)
    assert size_for(0, sizes) is None
    assert size_for(513, sizes) is None
