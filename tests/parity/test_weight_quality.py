"""SmolLM2 reads a text almost as well where less is kept of its numbers."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from fastgen_api.spec import DType, Quantization
from fastgen_kernels.cpu_step.isa import isa_of
from fastgen_runtime.device.runner import Runner, RunnerConfig
from fastgen_runtime.engine import cores
from fastgen_runtime.engine.runner_config import CpuStepUse
from fastgen_runtime.engine.step import Chunk, Step, TokenLogprobs
from fastgen_runtime.models.checkpoint import Checkpoint, open_checkpoint

TEXT = """\
The harbour of a small town lies where a river meets the sea. In the morning the fishing boats come
back, and the people who live near the water hear the engines before they see the lights. On the
quay stands an old house with a red roof. It was built by a merchant who sold salt and rope to the
ships that sailed north, and for a hundred years his family kept a record of each of them: the name
of the captain, the number of sailors, and what they carried. When the railway came, fewer ships
called at the harbour, and the house was sold to the town. Today it is a museum. Children from the
school walk through its rooms and look at the maps on the walls. Some of the maps show coasts that
nobody had measured yet, so the lines end in the middle of the paper. The teacher asks them what
could be found beyond the line. One of them says that there must be more land, another that there is
only water, and a third one says that the best way to know is to go there and to draw the rest.
"""


@pytest.fixture(scope="module")
def checkpoint(smollm2_path: Path) -> Checkpoint:
    return open_checkpoint(smollm2_path)


def read(checkpoint: Checkpoint, **settings: Any) -> tuple[TokenLogprobs, ...]:
    """What the model thought of each token of the text but the first; settings: RunnerConfig's."""
    ids = checkpoint.tokenizer.encode(TEXT).ids
    config = replace(RunnerConfig(dtype=DType.FLOAT32, num_blocks=8), **settings)
    runner = Runner.load(checkpoint, config)
    chunk = Chunk("r", ids, 0, range(8), None, num_prompt_logprobs=1, targets=ids[1:])
    (result,) = runner.run(Step((chunk,)))
    assert result.prompt_logprobs is not None
    return result.prompt_logprobs


def perplexity(told: tuple[TokenLogprobs, ...]) -> float:
    return math.exp(-sum(each.logprob for each in told) / len(told))


needs_op = pytest.mark.skipif(isa_of(cores.cpu_flags()) is None, reason="needs AVX2")
BY_OP: Final = {"dtype": DType.BFLOAT16, "cpu_step": CpuStepUse.AUTO}


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"quantization": Quantization.INT8}, id="int8"),
        pytest.param(BY_OP, id="bfloat16 by the op", marks=needs_op),
        pytest.param(
            BY_OP | {"quantization": Quantization.INT8}, id="int8 by the op", marks=needs_op
        ),
    ],
)
def test_it_is_as_good_a_reader(checkpoint: Checkpoint, settings: dict[str, Any]) -> None:
    exact, rounded = read(checkpoint), read(checkpoint, **settings)
    same = sum(one.top[0][0] == two.top[0][0] for one, two in zip(exact, rounded, strict=True))
    worse = perplexity(rounded) / perplexity(exact)
    print(
        f"perplexity {perplexity(exact):.3f} and {perplexity(rounded):.3f} ({worse:.4f}), the same "
        f"likeliest token at {same} of {len(exact)}"
    )
    assert len(exact) > 200
    assert 0.98 < worse < 1.02
    assert same >= 0.95 * len(exact)
