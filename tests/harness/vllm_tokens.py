"""Greedy tokens of vLLM on a CPU, as JSON: run by vLLM's own environment, see test_vllm_backend.

Arguments: the file to write, and folders of checkpoints. Told as `forwards`: how often FastGen's
attention ran. Prompts are longer and shorter than a step's budget, blocks and windows, and two of
them begin alike.
"""

import json
import os
import random
import sys
from pathlib import Path
from typing import Any

PROMPT_LENGTHS = (5, 40, 1, 130, 17, 64)
STEP_TOKENS = 64
ANSWER_TOKENS = 16


def prompts() -> list[list[int]]:
    numbers = random.Random(3)
    made = [[numbers.randrange(1, 97) for _ in range(length)] for length in PROMPT_LENGTHS]
    return [*made, [*made[3][:128], 1, 2, 3]]


def tokens(folder: str) -> list[list[int]]:
    from vllm import LLM, SamplingParams  # type: ignore[import-not-found]

    model = LLM(
        folder,
        skip_tokenizer_init=True,
        enforce_eager=True,
        dtype="float32",
        max_model_len=256,
        max_num_seqs=4,
        max_num_batched_tokens=STEP_TOKENS,
        kv_cache_memory_bytes=1 << 26,
    )
    asked = SamplingParams(
        temperature=0, max_tokens=ANSWER_TOKENS, ignore_eos=True, detokenize=False
    )
    answers = model.generate(
        [{"prompt_token_ids": prompt} for prompt in prompts()], asked, use_tqdm=False
    )
    return [list(answer.outputs[0].token_ids) for answer in answers]


def count_forwards() -> list[int]:
    """[how often], which grows."""
    from fastgen_kernels.dropins.vllm_backend import FastGenAttentionImpl

    count, original = [0], FastGenAttentionImpl.forward

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        count[0] += 1
        return original(self, *args, **kwargs)

    FastGenAttentionImpl.forward = forward  # type: ignore[method-assign]
    return count


def main() -> None:
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    forwards = count_forwards()
    answers = {folder: tokens(folder) for folder in sys.argv[2:]}
    Path(sys.argv[1]).write_text(json.dumps({"answers": answers, "forwards": forwards[0]}))


if __name__ == "__main__":
    main()
