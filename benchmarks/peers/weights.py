"""SmolLM2 in each engine's form, of the same weights: the GGUF file's, rounded to bfloat16.

    python -m peers.weights

A Hugging Face folder (this engine, vLLM), OpenVINO's intermediate form, and a GGUF file. What
transformers says greedily to a few prompts is kept beside them: what every engine should say.
"""

import json
import shutil
from pathlib import Path
from typing import Any, Final

from fastgen_devcluster.command import run
from fastgen_devcluster.progress import step
from fastgen_runtime.sources.fetch import SMOLLM2, fetch
from fastgen_runtime.sources.smollm2 import REQUIREMENT
from peers.install import (
    LLAMACPP,
    digest,
    ensure_environment,
    ensure_llamacpp,
    home,
    lock_of,
)

REFERENCE_TOKENS: Final = 24
_REFERENCE: Final = "reference.json"
_READY: Final = ".ready"
_FORMAT: Final = "1"
"""Another one where what follows writes other files."""


def folder_of(kind: str) -> Path:
    """Where one form of the weights is kept."""
    locks = [lock_of(name).read_text() for name in ("openvino-export", LLAMACPP)]
    made_by = (REQUIREMENT, _FORMAT, str(REFERENCE_TOKENS), *locks)
    return home() / f"smollm2-{kind}-{digest(*made_by)}"


def ensure_folder() -> Path:
    """The Hugging Face folder, bfloat16, with the reference's prompts and tokens."""
    folder = folder_of("hf")
    if (folder / _READY).exists():
        return folder
    with step("write SmolLM2 as a Hugging Face folder, and transformers' greedy tokens"):
        folder.mkdir(parents=True, exist_ok=True)
        _write_folder(folder)
        (folder / _READY).touch()
    return folder


def _write_folder(folder: Path) -> None:
    """transformers' reading of the file, its weights rounded to bfloat16; it speaks in float32."""
    import torch
    from greedy_reference import PROMPTS, greedy_ids, reference_model, reference_tokenizer

    path = fetch(SMOLLM2)
    model, tokenizer = reference_model(path), reference_tokenizer(path)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16().float())
    prompts = [tokenizer(prompt)["input_ids"] for prompt in PROMPTS]
    said = [greedy_ids(model, prompt, REFERENCE_TOKENS) for prompt in prompts]
    (folder / _REFERENCE).write_text(json.dumps({"prompts": prompts, "tokens": said}))
    tokenizer.save_pretrained(folder)
    torch.nn.Module.to(model, torch.bfloat16)
    model.save_pretrained(folder)


def reference() -> tuple[list[list[int]], list[list[int]]]:
    """Token ids of the prompts, and what transformers says to each."""
    read: dict[str, Any] = json.loads((ensure_folder() / _REFERENCE).read_text())
    return read["prompts"], read["tokens"]


def ensure_openvino() -> Path:
    """The intermediate form; weights in float32, so that nothing is rounded again."""
    folder = folder_of("openvino")
    if (folder / _READY).exists():
        return folder
    python = ensure_environment("openvino-export")
    source = ensure_folder()
    with step("export SmolLM2 for OpenVINO"):
        shutil.rmtree(folder, ignore_errors=True)
        run(
            "nice", python.parent / "optimum-cli", "export", "openvino", "--model", source,
            "--task", "text-generation-with-past", "--weight-format", "fp32", folder,
            environment={"HF_HUB_OFFLINE": "1", "PYTHONPATH": ""},
        )  # fmt: skip
        (folder / _READY).touch()
    return folder


def ensure_gguf(kind: str) -> Path:
    """A GGUF file, of kind BF16 or F16; F16 holds these weights exactly or nearly."""
    folder = folder_of("gguf")
    path = folder / f"{kind}.gguf"
    if path.exists():
        return path
    program = ensure_llamacpp() / "llama-quantize"
    with step(f"write SmolLM2 as a GGUF file, {kind}"):
        folder.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(".draft")
        run("nice", program, "--allow-requantize", fetch(SMOLLM2), draft, kind)
        draft.rename(path)
    return path


def main() -> None:
    """Entry point."""
    print(ensure_folder())
    print(ensure_openvino())
    print(*(ensure_gguf(kind) for kind in ("BF16", "F16")), sep="\n")


if __name__ == "__main__":
    main()
