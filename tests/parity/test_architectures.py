"""Every architecture computes what transformers computes in float32, however a step is cut."""

import pytest
from model_pair import ModelPair
from tiny_models import TINY_MODELS


@pytest.fixture(scope="module", params=TINY_MODELS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModelPair:
    return ModelPair(TINY_MODELS[request.param], tmp_path_factory.mktemp("model"))


def test_logits_of_whole_prompts(pair: ModelPair) -> None:
    pair.check_whole_prompts()


@pytest.mark.parametrize("seed", [1, 2])
def test_logits_in_random_chunks_and_batches(pair: ModelPair, seed: int) -> None:
    pair.check_random_chunks(seed)


def test_greedy_tokens(pair: ModelPair) -> None:
    pair.check_greedy_tokens()
