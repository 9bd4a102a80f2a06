"""What the front process loads: it must start fast, stay small and never compute."""

import json
import subprocess
import sys

FORBIDDEN = {"torch", "triton", "transformers", "opentelemetry"}


def test_the_front_loads_nothing_that_computes() -> None:
    program = (
        "import json, sys; import fastgen_runtime.main, fastgen_runtime.replica; "
        "print(json.dumps(list(sys.modules)))"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    loaded = {name.split(".")[0] for name in json.loads(ended.stdout)}
    assert {"fastgen_runtime", "tokenizers", "grpc", "uvicorn"} <= loaded
    assert loaded & FORBIDDEN == set()
