"""Arguments of containers."""

from collections.abc import Iterable


def literal(arguments: Iterable[str]) -> list[str]:
    """Arguments that reach the process as they are here.

    The kubelet puts the values of environment variables, secrets too, where it reads `$(NAME)`, and
    takes `$$` for `$`.
    """
    return [argument.replace("$", "$$") for argument in arguments]
