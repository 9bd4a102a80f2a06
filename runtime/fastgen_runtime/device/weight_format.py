"""In which form the weights of layers are held on a device."""

from typing import Final

import torch

from fastgen_api.names import StartupFailure
from fastgen_api.spec import Quantization
from fastgen_kernels.dispatch import Device
from fastgen_kernels.torch_twins.quantized import WeightFormat
from fastgen_runtime.models.model_config import ModelConfig
from fastgen_runtime.startup_error import StartupError

_FORMATS: Final = {Quantization.INT8: WeightFormat.INT8, Quantization.FP8: WeightFormat.FP8}


def weight_format(wanted: Quantization, device: Device, model: ModelConfig) -> WeightFormat | None:
    """None: in the dtype that is computed with, as Auto has it for all checkpoints that are read.

    Raises StartupError for what is not held in 8 bits, or not there.
    """
    form = _FORMATS.get(wanted)
    if form is None:
        return None
    if model.experts:
        raise _refused(wanted, "weights of experts are not held in 8 bits: choose None")
    if form is WeightFormat.FP8 and device.kind != "cuda":
        raise _refused(wanted, "this replica computes on CPUs: choose Int8 or None")
    if device.kind == "cuda":
        from fastgen_kernels.triton_kernels.quantized import check_format

        dtype = torch.float8_e4m3fn if form is WeightFormat.FP8 else torch.int8
        try:
            check_format(dtype, device.capability)
        except ValueError as error:
            raise _refused(wanted, str(error)) from error
    return form


def _refused(wanted: Quantization, why: str) -> StartupError:
    return StartupError(StartupFailure.CONFIG_INVALID, f"quantization is {wanted}, and {why}")
