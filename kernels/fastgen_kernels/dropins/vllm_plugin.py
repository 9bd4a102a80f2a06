"""What vLLM calls by the entry point `fastgen` of its general plugins, in each of its processes."""

import logging
import os
from collections.abc import Mapping
from typing import Final

_LOG = logging.getLogger(__name__)
BACKEND: Final = "fastgen_kernels.dropins.vllm_backend.FastGenAttentionBackend"
CPU_SWITCH: Final = "FASTGEN_VLLM_CPU"


def register(environment: Mapping[str, str] = os.environ) -> None:
    """Registers the backend as CUSTOM, which vLLM uses where `attention_backend="CUSTOM"` says so.

    On CPUs vLLM takes CPU_ATTN whatever is said: FASTGEN_VLLM_CPU=1 puts this one in its place.
    """
    try:
        from vllm.v1.attention.backends.registry import (  # type: ignore[import-not-found]
            AttentionBackendEnum,
            register_backend,
        )
    except ImportError as error:  # raised, it would stop vLLM for whoever does not want us
        _LOG.warning("FastGen's attention is not registered: made for vLLM 0.32 (%s)", error)
        return
    register_backend(AttentionBackendEnum.CUSTOM, BACKEND)
    if environment.get(CPU_SWITCH) == "1":
        register_backend(AttentionBackendEnum.CPU_ATTN, BACKEND)
