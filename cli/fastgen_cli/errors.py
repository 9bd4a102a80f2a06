"""What goes wrong in a way that the reader can act on."""


class UserError(Exception):
    """The text says what is wrong and what to do; the command prints it and exits with 1."""
