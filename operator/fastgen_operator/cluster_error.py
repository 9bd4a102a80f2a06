"""What the API server did not do, and whether asking again helps."""

from typing import Final

import httpx2
from lightkube.core.exceptions import ApiError, ConfigError

from fastgen_operator.kinds import is_object_name

REJECTIONS: Final = frozenset({400, 403, 422})
"""Answers that say no to what was sent; all others, conflicts too, say that now is a bad time."""
RACE: Final = "the object has been modified"
"""How a write is refused that was made from an earlier version of what it changes."""
UNTYPED: Final = (
    "failed to create typed patch object",
    "failed to convert new object",
    "unable to parse quantity",
    "unable to parse numeric part of quantity",
    "quantities must match the regular expression",
)
"""How server-side apply refuses fields and values that it cannot read: with 500."""
OTHER_UIDS: Final = ("UID in precondition", "UID in the precondition")
"""Kubernetes checks a precondition in two places, with different words."""
KIND_TERMINATING: Final = "custom resource definition is terminating"
TERMINATING: Final = "because it is being terminated"


class ClusterError(Exception):
    """The API server did not do what it was asked."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        """HTTP status; 0: no answer."""

    @property
    def is_rejection(self) -> bool:
        """Whether the same request will be refused again."""
        return self.code in REJECTIONS or any(words in str(self) for words in UNTYPED)

    @property
    def is_race(self) -> bool:
        """Whether somebody else wrote in between: from a new read the same may succeed."""
        return self.code == 409 and RACE in str(self)

    @property
    def is_of_another(self) -> bool:
        """Whether another object has the name by now."""
        return self.code == 409 and any(words in str(self) for words in OTHER_UIDS)

    @property
    def is_kind_gone(self) -> bool:
        """Whether the API server knows no such kind, or is about to forget it."""
        return self.code == 404 or KIND_TERMINATING in str(self)

    @property
    def is_namespace_terminating(self) -> bool:
        """Whether the namespace is being deleted, and our resource with it."""
        return self.code == 403 and TERMINATING in str(self)


def check_name(kind: str, name: str) -> None:
    """Raises ClusterError, a rejection, for what would lead a URL elsewhere."""
    if not is_object_name(name):
        raise ClusterError(422, f"{kind} {name!r}: no object can have this name")


def failure_of(error: httpx2.HTTPError | ConfigError) -> ClusterError:
    """What the client's error says; code 0 where nobody answered."""
    if isinstance(error, ApiError):
        return ClusterError(error.response.status_code, error.status.message or str(error))
    if isinstance(error, httpx2.HTTPStatusError):
        return ClusterError(error.response.status_code, str(error))
    return ClusterError(0, f"{type(error).__name__}: {error}")
