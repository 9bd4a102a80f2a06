"""Which device computes, and what memory it has."""

import ctypes
import os
from collections.abc import Mapping
from typing import Final

import torch

from fastgen_api.names import StartupFailure
from fastgen_kernels.dispatch import Device, UnsupportedDeviceError, check
from fastgen_runtime.allotment import has_gpus
from fastgen_runtime.log import log_warning
from fastgen_runtime.models.preflight import Offer, offer_now
from fastgen_runtime.startup_error import StartupError

CPU: Final = Device("cpu")
_DRIVER_LIBRARY: Final = "libcuda.so.1"
_IDLE_GPUS: Final = (
    "GPUs were allotted to this replica, but it sees no NVIDIA driver: it computes on CPUs"
)


def find_device(index: int = 0, environment: Mapping[str, str] = os.environ) -> Device:
    """The GPU of this number where there is one, else the CPU.

    Raises StartupError for GPUs that no kernel runs on: serving on CPUs instead would be a
    surprise.
    """
    driver = _driver_version()
    if environment.get("CUDA_VISIBLE_DEVICES") == "":
        return CPU
    if driver is None:
        if has_gpus(environment):
            log_warning(_IDLE_GPUS)
        return CPU
    capability = (0, 0)
    if torch.cuda.is_available():  # with an old driver it is not
        if index >= torch.cuda.device_count():
            return _too_few(index)
        capability = torch.cuda.get_device_capability(index)
    device = Device("cuda", capability, driver, toolkit_version())
    try:
        check(device)
    except UnsupportedDeviceError as error:
        raise StartupError(StartupFailure.CONFIG_INVALID, str(error)) from error
    return device


def toolkit_version() -> tuple[int, int]:
    """The CUDA that torch was built for; (0, 0) for none."""
    major, _, minor = (torch.version.cuda or "0.0").partition(".")
    return int(major), int(minor)


def parse_driver_version(number: int) -> tuple[int, int]:
    """CUDA's way to write versions: 12040 is 12.4."""
    return number // 1000, number % 1000 // 10


def offer_of(device: torch.device, memory_percent: int) -> Offer:
    """Of the device's memory: a GPU's own, for CPUs the machine's."""
    if device.type != "cuda":
        return offer_now(memory_percent)
    free, total = torch.cuda.mem_get_info(device)
    return Offer(None, free, total - free, memory_percent)


def _driver_version() -> tuple[int, int] | None:
    """None where there is no driver."""
    try:
        library = ctypes.CDLL(_DRIVER_LIBRARY)
    except OSError:
        return None
    number = ctypes.c_int(0)
    if library.cuDriverGetVersion(ctypes.byref(number)) or not number.value:
        return None
    return parse_driver_version(number.value)


def _too_few(index: int) -> Device:
    count = torch.cuda.device_count()
    if count == 0:
        return CPU
    raise StartupError(
        StartupFailure.CONFIG_INVALID,
        f"tensor_parallel_size needs {index + 1} GPUs or more, and there are {count}: lower it, or "
        "raise the limit of nvidia.com/gpu",
    )
