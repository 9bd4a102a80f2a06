"""The kernels for a device that a program of somebody else computes on."""

from functools import lru_cache

import torch

from fastgen_kernels.dispatch import Device, Kernels, kernels_for


@lru_cache(maxsize=16)
def kernels_on(device: torch.device) -> Kernels:
    """Raises UnsupportedDeviceError where none run; old drivers have no CUDA tensors."""
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else (0, 0)
    return kernels_for(Device(device.type, capability))
