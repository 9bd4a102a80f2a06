"""What settings mean that were left out, and which cannot be."""

import pytest

from fastgen_api.spec import BudgetMode
from fastgen_runtime.config import Config
from fastgen_runtime.startup_error import StartupError


@pytest.mark.parametrize(
    ("mode", "budget", "tokens"),
    [
        (BudgetMode.AUTO, None, 2048),
        (BudgetMode.FIXED, None, 512),
        (BudgetMode.AUTO, 300, 300),
        (BudgetMode.FIXED, 300, 300),
    ],
)
def test_a_budget_that_was_left_out_is_the_modes_own(
    mode: BudgetMode, budget: int | None, tokens: int
) -> None:
    config = Config(model="m", token_budget_mode=mode, token_budget=budget)
    config.check()
    assert config.budget_tokens == tokens
    assert config.max_running == 256


def test_no_more_requests_run_than_a_step_has_tokens() -> None:
    assert Config(model="m", token_budget=64).max_running == 64


def test_a_budget_without_tokens_is_refused() -> None:
    with pytest.raises(StartupError, match="--token-budget is 0; it must be 1 or more"):
        Config(model="m", token_budget=0).check()
