"""What the kernels do not compute, said so that whoever asked for it knows the way out."""


class UnsupportedAttentionError(ValueError):
    """The text names what was asked for, what there is, and what to use instead."""
