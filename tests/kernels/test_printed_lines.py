"""What the pages print for transformers runs as it is printed; for vLLM, see test_vllm_backend."""

from pathlib import Path
from typing import Any

import pytest
import torch
from printed_lines import printed_python
from transformers import AutoModelForCausalLM, LlamaConfig

TINY = LlamaConfig(
    vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=1,
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
)  # fmt: skip


@pytest.mark.parametrize("page", ["README.md", "docs/kernels.md"])
def test_the_lines_for_transformers(page: str, tmp_path: Path) -> None:
    AutoModelForCausalLM.from_config(TINY).save_pretrained(tmp_path)
    names: dict[str, Any] = {}
    exec(printed_python(page, "register").replace("…", str(tmp_path)), names)
    model, ids = names["model"], torch.tensor([[5, 6, 7]])
    assert model.model.layers[0].self_attn.config._attn_implementation == "fastgen"
    told = model.generate(ids, max_new_tokens=4, do_sample=False)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager")
    assert torch.equal(told, plain.generate(ids, max_new_tokens=4, do_sample=False))
