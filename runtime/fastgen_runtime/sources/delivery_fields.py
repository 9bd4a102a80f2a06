"""How a download's progress reads in the ConfigMap of its deployment."""

from collections.abc import Mapping
from pathlib import Path

from fastgen_api.delivery import DeliveryField, DeliveryState
from fastgen_api.names import StartupFailure
from fastgen_runtime.sources.progress import Told

Fields = Mapping[str, str | None]
"""Data of the ConfigMap by `DeliveryField`; None removes a key."""


def fields_of(
    told: Told,
    state: DeliveryState,
    root: Path,
    failure: tuple[StartupFailure, str] | None = None,
) -> dict[str, str | None]:
    """What the ConfigMap is to say. root: the cache, which the path is relative to."""
    reason, message = failure or (None, "")
    if state is DeliveryState.DOWNLOADING:
        reason = StartupFailure.DOWNLOAD_FAILED if told.wait else None
        message = told.wait or told.busy
    return {
        DeliveryField.STATE: state,
        DeliveryField.REVISION: told.revision,
        DeliveryField.PATH: str(told.path.relative_to(root)) if told.path else None,
        DeliveryField.SIZE_BYTES: None if told.size_bytes is None else str(told.size_bytes),
        DeliveryField.DOWNLOADED_BYTES: str(told.downloaded_bytes) if told.brings_all else None,
        DeliveryField.REASON: reason,
        DeliveryField.MESSAGE: message or None,
    }


def is_worth_telling(last: Fields, fields: Fields) -> bool:
    """Whether a reader would act on the difference: anything but less than a percent of bytes."""
    moved = DeliveryField.DOWNLOADED_BYTES
    if any(last.get(key) != value for key, value in fields.items() if key != moved):
        return True
    size = int(fields[DeliveryField.SIZE_BYTES] or 0)
    come = abs(int(fields[moved] or 0) - int(last.get(moved) or 0))
    return come > 0 and 100 * come >= size
