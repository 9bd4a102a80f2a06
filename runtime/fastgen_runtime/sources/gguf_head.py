"""What the first bytes of a GGUF file tell, before the others are fetched."""

from fastgen_api.names import StartupFailure
from fastgen_runtime.models.gguf_config import config_from_gguf
from fastgen_runtime.models.gguf_file import read_gguf_head
from fastgen_runtime.startup_error import ModelError


def check_gguf_head(head: bytes, name: str) -> None:
    """Raises ModelError for what is no GGUF file, or has an architecture that we do not know.

    head: how the file begins, long enough for its first settings.
    """
    metadata = read_gguf_head(head, name)
    if "general.architecture" not in metadata:
        return
    try:
        config_from_gguf({"general.architecture": metadata["general.architecture"]}, ())
    except ModelError as error:
        # That other settings are missing is no wonder: they come later in the file.
        if error.reason is StartupFailure.MODEL_UNSUPPORTED:
            raise
