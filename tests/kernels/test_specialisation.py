"""A server compiles attention once: no shape that it meets makes Triton compile another kernel."""

import json
import subprocess
import sys

# In a process that does not interpret: Triton tells what it would compile.
CODE = """
import json
import torch
from fastgen_kernels.aot.compilation import specialisation
from fastgen_kernels.heads import Heads
from fastgen_kernels.ragged import RaggedBatch
from fastgen_kernels.triton_kernels.attention import launches
from fastgen_kernels.triton_kernels.attention_plan import make_plan
from fastgen_kernels.triton_kernels.kv_cache import kv_write_launch
from fastgen_kernels.triton_kernels.tiling import Gpu

heads, device = Heads(32, 8, 128), torch.device("cpu")
cache = torch.empty((2, 640, 8, 128), dtype=torch.bfloat16)
found = {}
for chunks in (
    [(1, 1)], [(15, 1)], [(5000, 1)], [(100, 1)] * 16, [(100, 1)] * 17,
    [(0, 2)], [(0, 16), (64, 100)], [(7, 33), (9000, 1)],
):
    counts = [-(-(start + length) // 64) for start, length in chunks]
    batch = RaggedBatch.of(*map(list, zip(*chunks)), [[0] * count for count in counts], 64)
    tokens = int(batch.lengths.sum())
    query = torch.empty((tokens, 32, 128), dtype=torch.bfloat16)
    for window in (None, 1, 16, 4096):
        plan = make_plan(batch, heads, device, Gpu(90, 132), window)
        for launch in launches(query, cache, plan, torch.empty_like(query)):
            name = launch.kernel.__name__ + ("_window" if launch.arguments.get("windowed") else "")
            found.setdefault(name, set()).add(specialisation(launch, 90))
    keys = torch.empty((tokens, 8, 128), dtype=torch.bfloat16)
    launch = kv_write_launch(keys, keys, cache, torch.zeros(tokens, dtype=torch.int64))
    found.setdefault("kv_write", set()).add(specialisation(launch, 90))
print(json.dumps({name: len(keys) for name, keys in found.items()}))
"""


def test_a_kernel_is_compiled_once_for_all_batches() -> None:
    """vLLM 45631: kernels were compiled anew for counts of 1, of multiples of 16 and others."""
    told = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=120)
    assert told.returncode == 0, told.stderr
    counts = json.loads(told.stdout)
    assert counts == {"decode": 1, "merge": 1, "prefill": 1, "prefill_window": 1, "kv_write": 1}
