"""Script mode: the whole engine in this process, without sockets."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from greedy_reference import PROMPTS, greedy_texts

import fastgen_runtime
from fastgen_runtime.front.generation import RequestError
from fastgen_runtime.script import Pipeline
from fastgen_runtime.startup_error import StartupError

NUM_TOKENS = 32
REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def pipe(smollm2_path: Path) -> Pipeline:
    return fastgen_runtime.pipeline(
        str(smollm2_path),
        dtype="Float32",
        max_model_length=256,
        max_concurrent_requests=3,
        kv_block_size=16,
        token_budget=16,
    )


def test_greedy_text_is_transformers(smollm2_path: Path, pipe: Pipeline) -> None:
    """Five prompts for three places and a small budget: waiting, chunks and mixed steps."""
    responses = pipe(PROMPTS, max_new_tokens=NUM_TOKENS, temperature=0)
    expected = greedy_texts(smollm2_path, PROMPTS, NUM_TOKENS)
    assert [response.generated_text for response in responses] == expected
    assert {response.generated_length for response in responses} == {NUM_TOKENS}
    assert {response.finish_reason for response in responses} == {"length"}
    assert [response.prompt_length for response in responses] == [7, 10, 7, 10, 19]


def test_a_seed_fixes_the_answer_in_any_company(pipe: Pipeline) -> None:
    sampled = {"max_new_tokens": 12, "temperature": 1.0, "top_p": 0.9}
    alone = pipe(PROMPTS[1], seed=8, **sampled)
    assert pipe(PROMPTS[:3], seed=7, **sampled)[1] == alone[0]
    assert pipe(PROMPTS[1], seed=9, **sampled) != alone


def test_pieces_make_up_the_text_and_stop_strings_end_it(pipe: Pipeline) -> None:
    pieces: list[str] = []
    (response,) = pipe(
        PROMPTS[0],
        max_new_tokens=30,
        temperature=0,
        stop=["event"],
        on_token=lambda _, text: pieces.append(text),
    )
    assert "".join(pieces) == response.generated_text == " it's a celestial "
    assert response.finish_reason == "stop"


def test_wrong_parameters_are_named_and_harm_nothing(pipe: Pipeline) -> None:
    with pytest.raises(RequestError, match="top_p"):
        pipe(PROMPTS[:1], top_p=2.0)
    with pytest.raises(RequestError, match="prompts"):
        pipe([PROMPTS[0], ""], max_new_tokens=1)
    with pytest.raises(RequestError, match="256"):
        pipe("word " * 300, max_new_tokens=1)
    assert len(pipe(PROMPTS[:2], max_new_tokens=2)) == 2


def test_an_interrupted_call_leaves_the_engine_free(pipe: Pipeline) -> None:
    def interrupt(number: int, text: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pipe(PROMPTS, max_new_tokens=9, on_token=interrupt)
    assert len(pipe(PROMPTS[:1], max_new_tokens=2)) == 1


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"memory_percent": 0}, "memory_percent"), ({"max_model_length": 9999}, "8192 positions")],
)
def test_wrong_settings_are_named(smollm2_path: Path, settings: dict[str, int], words: str) -> None:
    with pytest.raises(StartupError, match=words):
        fastgen_runtime.pipeline(str(smollm2_path), **settings)


def test_importing_the_package_and_its_front_costs_no_torch() -> None:
    code = "import sys, fastgen_runtime, fastgen_runtime.models.checkpoint, "
    code += "fastgen_runtime.engine.scheduler; "
    code += "sys.exit('torch' in sys.modules or 'gguf' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_pages_scripts_run(smollm2_path: Path, tmp_path: Path) -> None:
    """As they stand there, one after the other, in a folder that holds nothing.

    Those for other programs, which import the kernels alone, are for `tests/kernels`.
    """
    found = [
        script
        for page in ("README.md", "docs/engine.md")
        for script in re.findall(r"```python\n(.*?)```", (REPOSITORY / page).read_text(), re.DOTALL)
    ]
    scripts = [script for script in found if "fastgen_runtime" in script]
    assert len(scripts) == 2
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(scripts)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("Paris") == 2
