"""Fixtures that several kinds of tests share."""

import os
import signal
from pathlib import Path

# Before anything imports torch, and for the processes that tests start: threads that spin against
# those of another process make both slow.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest
import triton_interpreter  # noqa: F401 - before anything imports Triton
from hypothesis import settings

from fastgen_runtime.sources.fetch import SMOLLM2, fetch

# How long an example takes is the machine's affair: no test is timed.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


# A shell that runs the tests in its background has this ignored, and so have their children.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct, fetched once into the cache."""
    return fetch(SMOLLM2)
