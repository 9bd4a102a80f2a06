"""What a page prints to be copied."""

import re
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]


def printed_python(page: str, word: str) -> str:
    """The only lines of Python with this word on a page of this repository."""
    blocks = re.findall(r"```python\n(.*?)```", (_ROOT / page).read_text(), re.DOTALL)
    (found,) = [block for block in blocks if word in block]
    return str(found)
