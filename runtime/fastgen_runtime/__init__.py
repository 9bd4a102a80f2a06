"""Turns requests into tokens: a front process and an engine process in each replica."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastgen_runtime.script import Pipeline


def pipeline(model: str, **settings: Any) -> "Pipeline":
    """A model in this process: `pipeline("/path")(["prompt"], max_new_tokens=32)`.

    model: a source, as `fastgen-runtime --model` takes it. settings: those of
    `fastgen_runtime.script.load_pipeline`.
    """
    # Only whoever calls it pays for torch.
    from fastgen_runtime.script import load_pipeline

    return load_pipeline(model, **settings)
