"""What a reconcile raises that must be tried again."""


class UnsettledError(Exception):
    """The reconcile must be tried again; the message says why."""


class RejectedError(UnsettledError):
    """The API server refuses what the spec makes, and will again until somebody changes it."""
