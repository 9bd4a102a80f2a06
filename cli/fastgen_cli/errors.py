"""What goes wrong in a way that the reader can act on."""

import re


class UserError(Exception):
    """The text says what is wrong and what to do; the command prints it and exits with 1."""


def needs(what: str, missing: str) -> str:
    """That a module or program is not installed, and how to get it.

    From the repository: the name on PyPI is another's.
    """
    return (
        f"{what} needs {missing}: run pip install '.[cli,runtime,balancer]' in FastGen's repository"
    )


def missing_module(log: str) -> str | None:
    """The module for want of which a program ended, by the last line of its log.

    None also for a module of ours: that is a fault, which no installation mends.
    """
    found = re.search(r"^ModuleNotFoundError: No module named '([^']+)'\s*\Z", log, re.MULTILINE)
    return None if found is None or found[1].startswith("fastgen_") else found[1]
