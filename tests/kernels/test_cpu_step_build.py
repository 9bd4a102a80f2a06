"""How the step is compiled: once for all, never half, and failures in words."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from step_pair import step_model, tiny

from fastgen_kernels.cpu_step.compiler import CompileError, build
from fastgen_kernels.cpu_step.description import Element, StepModel
from fastgen_kernels.cpu_step.isa import Isa, isa_of

MODEL = step_model(tiny(), 16, Element.BF16, Element.BF16)

COPYING = """#!/bin/sh
echo compiled >> "{log}"
for last; do :; done
echo library > "$last"
"""
"""A compiler that leaves a word where the library should be."""


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Its log has a line for each time that it was called."""
    log = tmp_path / "log"
    _install(tmp_path, COPYING.format(log=log), monkeypatch)
    return log


def _install(tmp_path: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "c++"
    program.parent.mkdir()
    program.write_text(script)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")


def test_compiles_once(tmp_path: Path, compiler: Path) -> None:
    cache = tmp_path / "cache"
    first, second = (build(MODEL, Isa.AVX2, cache) for _ in range(2))
    assert first.path == second.path
    assert (first.compiled, second.compiled) == (True, False)
    assert first.path.read_text() == "library\n"
    assert compiler.read_text() == "compiled\n"
    assert not list(cache.glob("building-*"))


def test_what_differs_has_a_library_of_its_own(tmp_path: Path, compiler: Path) -> None:
    others = [
        step_model(tiny(num_layers=3), 16, Element.BF16, Element.BF16),
        step_model(tiny(), 32, Element.BF16, Element.BF16),
        step_model(tiny(), 16, Element.FP32, Element.FP32),
        step_model(tiny(), 16, Element.BF16, Element.BF16, int8_group=128),
    ]
    built = {build(model, Isa.AVX2, tmp_path).path for model in (MODEL, *others)}
    assert len(built | {build(MODEL, Isa.AVX512_BF16, tmp_path).path}) == 6


def test_prebuilt_is_looked_at_first(tmp_path: Path, compiler: Path) -> None:
    prebuilt = build(MODEL, Isa.AVX2, tmp_path / "prebuilt").path
    found = build(MODEL, Isa.AVX2, tmp_path / "cache", tmp_path / "prebuilt")
    assert (found.path, found.compiled) == (prebuilt, False)
    assert not (tmp_path / "cache").exists()


def test_processes_that_build_at_once_compile_once(tmp_path: Path, compiler: Path) -> None:
    code = (
        "from pathlib import Path; from test_cpu_step_build import MODEL, build, Isa;"
        f"build(MODEL, Isa.AVX2, Path({str(tmp_path / 'cache')!r}))"
    )
    path = os.pathsep.join((*sys.path, str(Path(__file__).parent)))
    processes = [
        subprocess.Popen([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": path})
        for _ in range(3)
    ]
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert compiler.read_text() == "compiled\n"


def test_a_compilers_words_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _install(tmp_path, "#!/bin/sh\necho no such header >&2\nexit 3\n", monkeypatch)
    with pytest.raises(CompileError, match=r"c\+\+ failed: no such header"):
        build(MODEL, Isa.AVX2, tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("*.so"))


def test_no_compiler(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match=r"no C\+\+ compiler is installed \(looked for none-"):
        build(MODEL, Isa.AVX2, tmp_path, compilers=("none-such",))


def test_a_cache_that_cannot_be_written(tmp_path: Path, compiler: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CompileError, match="cannot be kept in"):
        build(MODEL, Isa.AVX2, tmp_path / "file" / "cache")


@pytest.mark.parametrize(
    ("flags", "isa"),
    [
        ({"avx2", "fma", "sse2"}, Isa.AVX2),
        ({"avx2"}, None),
        (
            {"avx2", "fma", "avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_bf16"},
            Isa.AVX512_BF16,
        ),
        ({"avx2", "fma", "avx512f", "avx512bw", "avx512vl", "avx512dq"}, Isa.AVX2),
        (set(), None),
    ],
)
def test_the_best_that_a_cpu_has(flags: set[str], isa: Isa | None) -> None:
    assert isa_of(frozenset(flags)) is isa


@pytest.mark.parametrize(
    ("model", "isa", "said"),
    [
        (MODEL, Isa.AVX512_BF16, None),
        (step_model(tiny(head_dim=10), 16, Element.BF16, Element.BF16), Isa.AVX2, "head size 10"),
        (step_model(tiny(), 8, Element.BF16, Element.BF16), Isa.AVX2, "block size of 8"),
        (step_model(tiny(), 96, Element.BF16, Element.BF16), Isa.AVX2, "block size of 96"),
        (
            step_model(tiny(intermediate_size=50), 16, Element.BF16, Element.BF16),
            Isa.AVX2,
            "intermediate size 50",
        ),
        (
            step_model(tiny(gated=False, intermediate_size=50), 16, Element.BF16, Element.BF16),
            Isa.AVX2,
            None,
        ),
        (
            step_model(tiny(), 16, Element.BF16, Element.FP32),
            Isa.AVX512_BF16,
            "a cache in float32",
        ),
    ],
)
def test_what_cannot_be_run_is_said(model: StepModel, isa: Isa, said: str | None) -> None:
    reason = model.unsupported(isa)
    assert reason is None if said is None else said in (reason or "")
