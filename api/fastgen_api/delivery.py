"""How a model comes to the replicas: what the download tells, and what the status says of it."""

from enum import StrEnum
from typing import Final

DOWNLOAD_MANAGER: Final = "fastgen-download"
"""Field manager of what the download tells."""


class ModelPhase(StrEnum):
    """How far a model is on its way to the replicas, `status.model.phase`."""

    PENDING = "Pending"
    DOWNLOADING = "Downloading"
    LOADING = "Loading"
    READY = "Ready"
    FAILED = "Failed"


class DeliveryField:
    """Keys of the data of the ConfigMap `names.model_config_map_name`, all text.

    Written by the download (field manager `DOWNLOAD_MANAGER`), read by the operator.
    """

    KEY: Final = "key"
    """Which model this speaks of: the key of `names.download_job_name`."""
    STATE: Final = "state"
    """A `DeliveryState`."""
    REVISION: Final = "revision"
    """Commit that an hf:// source was resolved to."""
    PATH: Final = "path"
    """The model's file or folder, relative to the cache's root."""
    SIZE_BYTES: Final = "sizeBytes"
    DOWNLOADED_BYTES: Final = "downloadedBytes"
    REASON: Final = "reason"
    """A `names.StartupFailure`, while the state is Failed or the download waits to try again."""
    MESSAGE: Final = "message"


class DeliveryState(StrEnum):
    """How far a download is."""

    DOWNLOADING = "Downloading"
    DELIVERED = "Delivered"
    FAILED = "Failed"
