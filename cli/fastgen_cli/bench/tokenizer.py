"""Counts tokens on this machine, for endpoints that do not."""

from collections.abc import Callable
from pathlib import Path

from fastgen_cli.errors import UserError


def load_tokenizer(path: Path) -> Callable[[str], int]:
    """A function that counts a text's tokens; path: tokenizer.json, or a folder that holds it.

    Raises UserError where it cannot be read, or the package tokenizers is missing.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise UserError("--tokenizer needs tokenizers: pip install tokenizers") from None
    file = path / "tokenizer.json" if path.is_dir() else path
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the package raises nothing narrower
        raise UserError(f"--tokenizer {file}: {error}") from error
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)
