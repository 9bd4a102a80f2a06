"""Fixtures that several kinds of tests share."""

from pathlib import Path

import pytest

from fastgen_cli import smollm2


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct, fetched once into the cache."""
    return smollm2.fetch()
