"""What goes wrong in a way that the reader can act on."""


class UserError(Exception):
    """The text says what is wrong and what to do; the command prints it and exits with 1."""


def needs(what: str, missing: str) -> str:
    """That a module or program is not installed, and how to get it.

    From the repository: the name on PyPI is another's.
    """
    return (
        f"{what} needs {missing}: run pip install '.[cli,runtime,balancer]' in FastGen's repository"
    )
