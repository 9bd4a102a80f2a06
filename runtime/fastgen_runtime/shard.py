"""Which part of each layer a rank holds under tensor parallelism (Shoeybi et al., 2019, section 3).

Query heads and the inner columns of feed-forward layers are split; keys and values too while there
are as many heads as ranks, else ranks share them. Embedding, norms, routers and output are whole.
"""

from dataclasses import dataclass, replace

from fastgen_runtime.model_config import ModelConfig, unsupported


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
