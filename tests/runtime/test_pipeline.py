"""`fastgen_runtime.pipeline` as DeepSpeed-MII's, with a tiny random model."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hub_server import COMMIT, serving_hub
from tiny_model import write_tiny_model

import fastgen_runtime
from fastgen_runtime.front.generation import RequestError
from fastgen_runtime.script import DestroyedError, Pipeline
from fastgen_runtime.startup_error import StartupError

SETTINGS: dict[str, Any] = {"max_concurrent_requests": 4, "kv_block_size": 16}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="module")
def pipe(folder: Path) -> Iterator[Pipeline]:
    with fastgen_runtime.pipeline(str(folder), **SETTINGS) as pipeline:
        yield pipeline


def blocks_in_use(pipeline: Pipeline) -> int:
    total = pipeline._loaded()[1]._runner.num_blocks
    return total - pipeline.load().num_free_blocks


def test_one_prompt_or_several(pipe: Pipeline) -> None:
    (alone,) = pipe("abc", max_new_tokens=5, do_sample=False)
    both = pipe(["abc", "de"], max_new_tokens=5, do_sample=False)
    assert both[0] == alone
    assert str(alone) == alone.generated_text
    assert (alone.prompt_length, alone.generated_length, alone.finish_reason) == (3, 5, "length")
    assert [response.prompt_length for response in both] == [3, 2]
    assert pipe([]) == []


def test_lengths(pipe: Pipeline) -> None:
    def length(**parameters: Any) -> int:
        return pipe("abc", do_sample=False, ignore_eos=True, **parameters)[0].generated_length

    assert length(max_length=10) == 7
    assert length(max_length=10, max_new_tokens=4) == length(max_length=100, max_new_tokens=4) == 4
    assert length() == 125, "as long as the model knows positions"


def test_the_end_token_waits_for_min_new_tokens(pipe: Pipeline) -> None:
    likes_to_end: dict[str, Any] = {"logit_bias": {256: 100.0}, "max_new_tokens": 9}
    assert pipe("abc", **likes_to_end)[0].generated_length == 1
    (response,) = pipe("abc", min_new_tokens=4, **likes_to_end)
    assert (response.generated_length, response.finish_reason) == (5, "stop")
    assert pipe("abc", ignore_eos=True, **likes_to_end)[0].generated_length == 9


def test_the_full_text_begins_with_the_prompt(pipe: Pipeline) -> None:
    options: dict[str, Any] = {"max_new_tokens": 5, "do_sample": False}
    (bare,), (full,) = pipe("abc", **options), pipe("abc", return_full_text=True, **options)
    assert full.generated_text == "abc" + bare.generated_text
    assert full.generated_length == bare.generated_length == 5


def test_logprobs_come_with_each_token(pipe: Pipeline) -> None:
    (response,) = pipe("abc", max_new_tokens=5, do_sample=False, logprobs=2)
    assert [token.rank for token in response.logprobs] == [1] * 5
    assert all(token.top[0] == (token.token_id, token.logprob) for token in response.logprobs)
    assert {len(token.top) for token in response.logprobs} == {2}
    assert pipe("abc", max_new_tokens=1)[0].logprobs == ()


def test_sampling(pipe: Pipeline) -> None:
    drawn = pipe(["abc"] * 3, max_new_tokens=8, do_sample=True, seed=1)
    assert len({str(response) for response in drawn}) == 3
    assert pipe("abc", max_new_tokens=8, seed=2) == [drawn[1]]
    greedy = pipe("abc", max_new_tokens=8, do_sample=False)
    assert pipe("abc", max_new_tokens=8, top_k=1, seed=3) == greedy
    assert pipe("abc", max_new_tokens=8, min_p=1.0, seed=3) == greedy
    (biased,) = pipe("abc", max_new_tokens=8, logit_bias={ord("a") - ord("!"): 100.0})
    assert str(biased) == "a" * 8


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"max_tokens": 3}, "max_tokens is no parameter of a pipeline; there are: max_new_tokens"),
        ({"temperature": "hot"}, r"temperature: Expected `float \| null`, got `str`"),
        ({"stop": 3}, "stop: Expected"),
        ({"max_new_tokens": 1.5}, "max_new_tokens: Expected"),
    ],
)
def test_what_is_no_parameter(pipe: Pipeline, parameters: dict[str, Any], words: str) -> None:
    with pytest.raises(TypeError, match=words):
        pipe("abc", **parameters)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens must be 1 or more"),
        ({"max_new_tokens": 2, "min_new_tokens": 3}, "min_new_tokens is 3, more than max_new_tok"),
        ({"max_length": 3}, "max_length is 3, and a prompt has 3 tokens already"),
        ({"do_sample": False, "temperature": 0.7}, "do_sample is False"),
        ({"top_p": 0}, "top_p must be above 0"),
        ({"stop": ["a"] * 9}, "stop may hold"),
        ({"stop_token_ids": [257]}, "outside 0 to 256"),
    ],
)
def test_values_that_cannot_be(pipe: Pipeline, parameters: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        pipe("abc", **parameters)
    assert blocks_in_use(pipe) == 0


def test_settings_that_cannot_be(folder: Path) -> None:
    with pytest.raises(StartupError, match="dtype is 'Int3'; it must be one of Auto"):
        fastgen_runtime.pipeline(str(folder), dtype="Int3")
    with pytest.raises(StartupError, match="token_budget_mode is 'auto'"):
        fastgen_runtime.pipeline(str(folder), token_budget_mode="auto")


def test_a_thousand_requests_leave_no_block_in_use(pipe: Pipeline) -> None:
    """Also those that end by a stop string, an error or an interruption."""

    def interrupt(number: int, text: str) -> None:
        raise KeyboardInterrupt

    prompts = ["ab" * length for length in (1, 9, 17, 25, 33, 41, 49, 57, 60, 62)]
    for number in range(100):
        match number % 10:
            case 7:
                with pytest.raises(RequestError):
                    pipe([*prompts, "a" * 200], max_new_tokens=2)
            case 8:
                with pytest.raises(KeyboardInterrupt):
                    pipe(prompts, max_new_tokens=4, logit_bias={7: 100.0}, on_token=interrupt)
            case 9:
                pipe(prompts, max_new_tokens=4, stop=list("abcd"), seed=number)
            case _:
                pipe(prompts, max_new_tokens=1, seed=number)
    load = pipe.load()
    assert (load.num_running, load.num_waiting, blocks_in_use(pipe)) == (0, 0, 0)
    pipe._loaded()[1].check()


def test_a_destroyed_pipeline_says_so_and_another_lives_on(folder: Path) -> None:
    first = fastgen_runtime.pipeline(str(folder), prefix_caching=False, **SETTINGS)
    with fastgen_runtime.pipeline(str(folder), token_budget_mode="Auto", **SETTINGS) as second:
        options: dict[str, Any] = {"max_new_tokens": 4, "do_sample": False}
        assert first("abc", **options) == second("abc", **options)
        first.destroy()
        first.destroy()
        assert len(second("abc", **options)) == 1
    for gone in (first, second):
        with pytest.raises(DestroyedError, match="destroyed"):
            gone("abc")


MEMORY = """
import sys
from pathlib import Path
import fastgen_runtime

def anonymous():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))

def use():
    with fastgen_runtime.pipeline(sys.argv[1], dtype="Float32", max_concurrent_requests=2) as pipe:
        pipe(["abc", "abcd" * 20], max_new_tokens=8)
        return anonymous()

use()  # what libraries keep for themselves comes with the first
before = anonymous()
print(use() - before, anonymous() - before)
"""


def run(code: str, *words: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_destroy_gives_the_memory_back(tmp_path: Path) -> None:
    """15 million float32 weights: 60 MB."""
    wide = {"hidden_size": 1024, "intermediate_size": 2048, "head_dim": 256}
    folder = write_tiny_model(tmp_path / "wide", 1, **wide)
    held, kept = map(int, run(MEMORY, str(folder)).split())
    assert held > 50 << 20
    assert kept < held / 10


def test_a_model_of_the_hub(folder: Path, pipe: Pipeline, tmp_path: Path) -> None:
    """The whole way: downloaded once, then from the cache, and the same answers."""
    code = "import sys, fastgen_runtime\n"
    code += "with fastgen_runtime.pipeline('hf://test/tiny', max_concurrent_requests=4) as pipe:\n"
    code += "    print(ascii(str(pipe('abc', max_new_tokens=8, do_sample=False)[0])))"
    expected = ascii(str(pipe("abc", max_new_tokens=8, do_sample=False)[0]))
    with serving_hub(folder) as hub:
        settings = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path)}
        assert run(code, **settings).strip() == expected
        assert len(hub.downloaded) == 5
        hub.reset()
        assert run(code, **settings).strip() == expected
        assert hub.downloaded == []
    assert (tmp_path / "hub" / "models--test--tiny" / "snapshots" / COMMIT).is_dir()
