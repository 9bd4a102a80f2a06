"""What goes wrong in a way that the reader can act on."""


class SetupError(Exception):
    """One line that tells the reader what to do."""
