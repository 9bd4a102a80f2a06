"""Names of the functions between the two linear layers of a feed-forward layer."""

from enum import StrEnum


class Activation(StrEnum):
    """GELU is exact, GELU_TANH its approximation (Hendrycks and Gimpel, 2016, section 2)."""

    SILU = "silu"
    GELU = "gelu"
    GELU_TANH = "gelu_tanh"
    RELU = "relu"

    @classmethod
    def named(cls, name: str) -> "Activation":
        """By the name in a checkpoint's configuration; raises ValueError with the known names."""
        try:
            return cls(_SYNONYMS.get(name, name))
        except ValueError:
            known = ", ".join(sorted({*cls, *_SYNONYMS}))
            raise ValueError(
                f"the activation {name} is not supported; supported: {known}"
            ) from None


_SYNONYMS = {
    "swish": "silu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
"""Names of Hugging Face's `ACT2FN` for the same functions."""
