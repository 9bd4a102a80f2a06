"""A tiny model here and in transformers, and the checks that both compute the same."""

import random
from pathlib import Path
from typing import Final

import torch
from tiny_models import VOCABULARY, TinyModel
from torch import Tensor
from transformers import PreTrainedModel

from fastgen_api.spec import DType
from fastgen_runtime.device.runner import Runner, RunnerConfig
from fastgen_runtime.engine.runner_config import CpuStepUse
from fastgen_runtime.engine.step import Chunk, Sampling, Step
from fastgen_runtime.models.checkpoint import open_checkpoint

LENGTH: Final = 50
BLOCKS_EACH: Final = 8
TOLERANCE: Final = 1e-4
MARGIN: Final = 1e-3
NEW_TOKENS: Final = 8


class ModelPair:
    """A model here and in transformers, and a prompt with its logits [LENGTH, VOCABULARY]."""

    def __init__(
        self,
        tiny: TinyModel,
        folder: Path,
        block_size: int = 8,
        cpu_step: CpuStepUse = CpuStepUse.OFF,
        dtype: DType = DType.FLOAT32,
    ) -> None:
        self.reference: PreTrainedModel = tiny.save(folder)
        config = RunnerConfig(
            dtype=dtype,
            block_size=block_size,
            num_blocks=BLOCKS_EACH * LENGTH,
            max_model_length=tiny.max_length,
            threads=1 if cpu_step is CpuStepUse.OFF else 2,
            cpu_step=cpu_step,
        )
        self.runner = Runner.load(open_checkpoint(folder), config)
        # What nobody wrote is NaN, so that a read of it shows.
        self.runner.cache.fill_(torch.nan)
        length = min(LENGTH, tiny.max_length or LENGTH)
        generator = torch.Generator().manual_seed(1)
        self.ids: list[int] = torch.randint(3, VOCABULARY, (length,), generator=generator).tolist()
        self.expected = self.logits(self.ids)

    def logits(self, ids: list[int]) -> Tensor:
        with torch.inference_mode():
            logits: Tensor = self.reference(torch.tensor([ids])).logits[0]
        return logits

    def check_whole_prompts(self) -> None:
        """Each beginning of the prompt is a request, so that all positions are last ones."""
        assert self.expected.std() > 0.3, "logits too flat to tell anything"
        chunks = [
            Chunk(str(end), self.ids[: end + 1], 0, _blocks_of(end), None)
            for end in range(len(self.ids))
        ]
        ours = self.runner.logits(chunks, list(range(len(chunks))))
        torch.testing.assert_close(ours, self.expected, atol=TOLERANCE, rtol=0)

    def check_random_chunks(self, seed: int) -> None:
        """Four requests with the prompt, in ragged batches of pieces of it."""
        rng = random.Random(seed)
        computed = dict.fromkeys(range(4), 0)
        while unfinished := [name for name, done in computed.items() if done < len(self.ids)]:
            chunks = []
            for name in rng.sample(unfinished, rng.randint(1, len(unfinished))):
                start = computed[name]
                size = rng.choice([1, 1, rng.randint(1, 30)])
                ids = self.ids[start : start + size]
                chunks.append(Chunk(str(name), ids, start, _blocks_of(name), None))
                computed[name] = start + len(ids)
            ours = self.runner.logits(chunks, list(range(len(chunks))))
            ends = [chunk.start + len(chunk.token_ids) - 1 for chunk in chunks]
            torch.testing.assert_close(ours, self.expected[ends], atol=TOLERANCE, rtol=0)

    def check_greedy_tokens(self) -> None:
        """Prompt in two chunks, then a token at a time; compared where a token is certain."""
        ids, computed = self.ids[:-NEW_TOKENS], 0
        for piece in [13, len(ids) - 13, *[1] * (NEW_TOKENS - 1)]:
            chunk = Chunk(
                "a",
                ids[computed : computed + piece],
                computed,
                _blocks_of(0),
                Sampling(temperature=0) if computed + piece == len(ids) else None,
            )
            (result,) = self.runner.run(Step((chunk,)))
            computed += piece
            if result.token_id is None:
                continue
            expected = self.logits(ids)[-1]
            likeliest = expected.topk(2)
            if likeliest.values[0] - likeliest.values[1] > MARGIN:
                assert result.token_id == likeliest.indices[0]
            ids.append(int(likeliest.indices[0]))


def _blocks_of(number: int) -> list[int]:
    """The request's blocks, spread over the cache."""
    return [number + LENGTH * place for place in range(BLOCKS_EACH)]
