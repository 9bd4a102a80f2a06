"""Which part of each layer a rank holds under tensor parallelism (Shoeybi et al., 2019, section 3).

Query heads and the inner columns of feed-forward layers are split; keys and values too while there
are as many heads as ranks, else ranks share them. Embedding, norms, routers and output are whole.
"""

from dataclasses import dataclass, replace

from fastgen_api.names import StartupFailure
from fastgen_runtime.models.model_config import ModelConfig, unsupported
from fastgen_runtime.startup_error import ModelError, StartupError


@dataclass(frozen=True, slots=True)
class Shard:
    """Rank `rank` of `size`."""

    rank: int = 0
    size: int = 1

    def part(self, count: int) -> range:
        """This rank's share of `count`; where ranks are more, several have the same one."""
        if count < self.size:
            first = self.rank * count // self.size
            return range(first, first + 1)
        each = count // self.size
        return range(self.rank * each, (self.rank + 1) * each)

    def config(self, config: ModelConfig) -> ModelConfig:
        """The model as this rank computes it; raises ModelError for what cannot be split."""
        inner = [("intermediate size", config.intermediate_size)]
        if config.experts:
            inner.append(("experts' intermediate size", config.experts.intermediate_size))
        for name, count in (("heads", config.num_heads), *inner):
            if count % self.size:
                raise unsupported(
                    f"the model's {count} {name} cannot be split in {self.size} equal parts"
                    if name == "heads"
                    else f"the model's {name} of {count} cannot be split in {self.size} equal parts"
                )
        fewer, more = sorted((config.num_kv_heads, self.size))
        if more % fewer:
            raise unsupported(
                f"the model's {config.num_kv_heads} key/value heads cannot be split over "
                f"{self.size} ranks"
            )
        return replace(
            config,
            num_heads=config.num_heads // self.size,
            num_kv_heads=len(self.part(config.num_kv_heads)),
            intermediate_size=config.intermediate_size // self.size,
            experts=config.experts
            and replace(
                config.experts,
                intermediate_size=config.experts.intermediate_size // self.size,
            ),
        )


def check_size(config: ModelConfig, size: int, setting: str) -> None:
    """Raises StartupError naming the setting, and the sizes that the model can be split in."""
    try:
        Shard(0, size).config(config)
    except ModelError as error:
        sizes = [other for other in range(1, config.num_heads + 1) if _can_split(config, other)]
        raise StartupError(
            StartupFailure.CONFIG_INVALID,
            f"{setting} is {size}: {error}; it may be {_in_words(sizes)}",
        ) from error


def _can_split(config: ModelConfig, size: int) -> bool:
    try:
        Shard(0, size).config(config)
    except ModelError:
        return False
    return True


def _in_words(numbers: list[int]) -> str:
    *most, last = map(str, numbers)
    return f"{', '.join(most)} or {last}" if most else last
