"""Runs other programs to their end."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path


class CommandError(Exception):
    """A program ended with an error; the text carries its last words."""


def run(
    *argv: str | Path,
    stdin: str = "",
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
    timeout_seconds: float | None = None,
) -> str:
    """Run a program, return what it printed, and raise with its complaint when it fails."""
    words = [str(word) for word in argv]
    shown = " ".join(words[:6])
    try:
        done = subprocess.run(
            words,
            input=stdin,
            env={**os.environ, **(environment or {})},
            cwd=directory,
            timeout=timeout_seconds,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        raise CommandError(f"`{shown}` did not start: {error}") from None
    except subprocess.TimeoutExpired:
        raise CommandError(f"`{shown}` took longer than {timeout_seconds} s") from None
    if done.returncode != 0:
        complaint = (done.stderr.strip() or done.stdout.strip())[-2000:]
        raise CommandError(f"`{shown}` ended with {done.returncode}: {complaint}")
    return done.stdout


def succeeds(*argv: str | Path) -> bool:
    """Run a program and tell whether it liked the outcome."""
    try:
        run(*argv)
    except CommandError:
        return False
    return True
