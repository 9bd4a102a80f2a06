"""Every architecture computes what transformers computes in float32, however a step is cut."""

import random
from pathlib import Path

import pytest
import torch
from tiny_models import TINY_MODELS, VOCABULARY, TinyModel
from torch import Tensor
from transformers import PreTrainedModel

from fastgen_runtime.device.runner import Runner, RunnerConfig
from fastgen_runtime.engine.step import Chunk, Sampling, Step
from fastgen_runtime.models.checkpoint import open_checkpoint

LENGTH = 50
BLOCK_SIZE = 8
BLOCKS_EACH = 8
TOLERANCE = 1e-4
MARGIN = 1e-3
NEW_TOKENS = 8


class Pair:
    """A model here and in transformers, and a prompt with its logits [LENGTH, VOCABULARY]."""

    def __init__(self, tiny: TinyModel, folder: Path) -> None:
        self.tiny = tiny
        self.reference: PreTrainedModel = tiny.save(folder)
        config = RunnerConfig(
            block_size=BLOCK_SIZE,
            num_blocks=BLOCKS_EACH * LENGTH,
            max_model_length=tiny.max_length,
            threads=1,
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


@pytest.fixture(scope="module", params=TINY_MODELS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair(TINY_MODELS[request.param], tmp_path_factory.mktemp("model"))


def blocks_of(number: int) -> list[int]:
    """The request's blocks, spread over the cache."""
    return [number + LENGTH * place for place in range(BLOCKS_EACH)]


def test_logits_of_whole_prompts(pair: Pair) -> None:
    """Each beginning of the prompt is a request, so that all positions are last ones."""
    assert pair.expected.std() > 0.3, "logits too flat to tell anything"
    chunks = [
        Chunk(str(end), pair.ids[: end + 1], 0, blocks_of(end), None)
        for end in range(len(pair.ids))
    ]
    ours = pair.runner.logits(chunks, list(range(len(chunks))))
    torch.testing.assert_close(ours, pair.expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("seed", [1, 2])
def test_logits_in_random_chunks_and_batches(pair: Pair, seed: int) -> None:
    rng = random.Random(seed)
    computed = dict.fromkeys(range(4), 0)
    while unfinished := [name for name, done in computed.items() if done < len(pair.ids)]:
        chunks = []
        for name in rng.sample(unfinished, rng.randint(1, len(unfinished))):
            start = computed[name]
            size = rng.choice([1, 1, rng.randint(1, 30)])
            ids = pair.ids[start : start + size]
            chunks.append(Chunk(str(name), ids, start, blocks_of(name), None))
            computed[name] = start + len(ids)
        ours = pair.runner.logits(chunks, list(range(len(chunks))))
        ends = [chunk.start + len(chunk.token_ids) - 1 for chunk in chunks]
        torch.testing.assert_close(ours, pair.expected[ends], atol=TOLERANCE, rtol=0)


def test_greedy_tokens(pair: Pair) -> None:
    """Prompt in two chunks, then a token at a time; each token is compared where it is certain."""
    ids, computed = pair.ids[:-NEW_TOKENS], 0
    for piece in [13, len(ids) - 13, *[1] * (NEW_TOKENS - 1)]:
        chunk = Chunk(
            "a",
            ids[computed : computed + piece],
            computed,
            blocks_of(0),
            Sampling(temperature=0) if computed + piece == len(ids) else None,
        )
        (result,) = pair.runner.run(Step((chunk,)))
        computed += piece
        if result.token_id is None:
            continue
        expected = pair.logits(ids)[-1]
        likeliest = expected.topk(2)
        if likeliest.values[0] - likeliest.values[1] > MARGIN:
            assert result.token_id == likeliest.indices[0]
        ids.append(int(likeliest.indices[0]))
