"""llama-batched-bench: llama.cpp without server and sampling, its best case.

It tells how long all prompts and how long all further tokens took, and no token ids; requests must
have equal lengths and arrive at once. Times of single tokens are the mean's.
"""

import json
import subprocess
from pathlib import Path
from typing import Any

from peers.protocol import Answer, Answerer, Request, Settings, serve


def equal_lengths(requests: list[Request]) -> tuple[int, int]:
    """Prompt and output tokens of every request; raises ValueError where they differ."""
    lengths = {(len(request.prompt), request.output) for request in requests}
    if len(lengths) != 1 or any(request.at for request in requests):
        raise ValueError("llama-batched-bench takes requests of equal lengths, all at once")
    return lengths.pop()


def times_of(prompt_seconds: float, decode_seconds: float, output: int) -> list[float]:
    """When each token came: the first with the prompt, the others evenly after it."""
    further = max(1, output - 1)
    return [prompt_seconds + decode_seconds * number / further for number in range(output)]


def load(settings: Settings) -> tuple[Answerer, dict[str, Any]]:
    """Own settings: program, batch (-b), micro_batch (-ub)."""

    def answer(requests: list[Request]) -> list[Answer]:
        prompt, output = equal_lengths(requests)
        threads, most = str(settings["threads"]), len(requests) * (prompt + output)
        arguments = [
            settings["program"], "-m", settings["model"], "-c", str(most), "-t", threads,
            "-tb", threads, "-b", str(settings["batch"]),
            "-ub", str(settings.get("micro_batch", 512)), "-npp", str(prompt),
            "-ntg", str(max(1, output - 1)), "-npl", str(len(requests)),
            "--output-format", "jsonl",
        ]  # fmt: skip
        done = subprocess.run(arguments, capture_output=True, text=True, check=False)
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode or not lines:
            raise RuntimeError(f"ended with {done.returncode}: {done.stderr.strip()[-500:]}")
        figures = json.loads(lines[-1])
        times = times_of(figures["t_pp"], figures["t_tg"], output)
        return [Answer(None, list(times)) for _ in requests]

    folder = Path(settings["program"]).resolve().parent.parent.name
    return answer, {"version": folder, "cache": "float16, as large as the requests"}


if __name__ == "__main__":
    serve(load)
