"""How many times a server's kernels are compiled: sizes of steps must not make another one.

vLLM's issues 45631, 27445 and 42849: a kernel compiled anew for one token, for multiples of 16, and
for all else stops every stream for a second in the middle of serving.
"""

import subprocess
import sys

import pytest

CODE = """
import torch
from fastgen_kernels.activation import Activation
from fastgen_kernels.aot.compilation import specialisation
from fastgen_kernels.torch_twins.quantized import QuantizedWeight
from fastgen_kernels.torch_twins.adjustment import Adjustment
from fastgen_kernels.torch_twins.sampling import Draw
from fastgen_kernels.triton_kernels.activation import activation_launch
from fastgen_kernels.triton_kernels.draw_table import DrawTable
from fastgen_kernels.triton_kernels.experts import StackedExperts, expert_launches
from fastgen_kernels.triton_kernels.norm import norm_launch
from fastgen_kernels.triton_kernels.quantized import linear_launches
from fastgen_kernels.triton_kernels.rotary import rotary_launch
from fastgen_kernels.triton_kernels.route import route_launch
from fastgen_kernels.triton_kernels.sampling import sample_launches
from fastgen_kernels.triton_kernels.token_logprobs import logprobs_launch

def tensor(*shape, dtype=torch.bfloat16):
    return torch.empty(shape, dtype=dtype, device="meta")

HIDDEN, INNER, EXPERTS, VOCABULARY = 512, 256, 8, 1000
VALUES = tensor(HIDDEN, HIDDEN, dtype=torch.int8)
WEIGHT = QuantizedWeight(VALUES, tensor(HIDDEN, 1, dtype=torch.float32))
MIXTURE = StackedExperts(tensor(EXPERTS, 2 * INNER, HIDDEN), tensor(EXPERTS, HIDDEN, INNER))

def launches(tokens):
    x = tensor(tokens, HIDDEN)
    weights = tensor(tokens, 2, dtype=torch.float32)
    ids = tensor(tokens, 2, dtype=torch.int64)
    edited = Draw(1.0, 9, 0.9, adjustment=Adjustment({7: 1.0}))
    yield "norm", norm_launch(x, x, x[0], None, 1e-5, x, centred=False)
    yield "activation", activation_launch(x, Activation.SILU, x[:, :INNER], gated=True)
    heads = tensor(tokens, 8, 64)
    yield "rotary", rotary_launch(heads[:, :6], tensor(tokens, 1, 32), tensor(tokens, 1, 32), heads)
    yield "route", route_launch(tensor(tokens, EXPERTS), 2, True, weights, ids)
    for launch in expert_launches(x, weights, ids, MIXTURE, Activation.SILU, x):
        gated = launch.arguments.get("gated", "")
        yield f"experts {launch.kernel.__name__} {gated} {launch.arguments.get('block_m')}", launch
    for launch in linear_launches(x, WEIGHT, None, x, 4):
        yield f"linear {launch.kernel.__name__} {launch.arguments.get('block_m')}", launch
    table = DrawTable.of([edited] * tokens, VOCABULARY)
    out = tensor(tokens, dtype=torch.int64)
    for launch in sample_launches(tensor(tokens, VOCABULARY), table, VOCABULARY, out):
        yield f"sample {launch.kernel.__name__}", launch
    values = tensor(tokens, 6, dtype=torch.float32)
    yield "logprobs", logprobs_launch(
        tensor(tokens, VOCABULARY), out, VOCABULARY, values, values.to(torch.int32)
    )

found = {}
for tokens in (1, 2, 15, 16, 17, 64, 333):
    for name, launch in launches(tokens):
        found.setdefault(name, set()).add(specialisation(launch, 90))
for name, keys in found.items():
    print(name, len(keys), sep=": ")
"""


@pytest.fixture(scope="module")
def counts() -> dict[str, int]:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return {
        name: int(count)
        for name, count in (line.rsplit(": ", 1) for line in done.stdout.splitlines())
    }


def test_steps_of_any_size_share_a_kernel_for_each_tile(counts: dict[str, int]) -> None:
    assert {name: count for name, count in counts.items() if count != 1} == {}
    assert len(counts) == 16
