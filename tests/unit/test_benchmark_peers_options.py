"""What the command line of the comparison with peers chooses."""

import pytest
from peers.__main__ import choose, read_options
from peers.adapters.fastgen import typed
from peers.settings import OURS, Configuration
from peers.workloads import Name

from fastgen_api.spec import DType
from fastgen_runtime.engine.runner_config import RunnerConfig


def chosen(*arguments: str) -> list[Configuration]:
    return choose(read_options(arguments), has_bfloat16=True)


def test_everything_runs_unless_something_is_chosen() -> None:
    names = {each.name for each in chosen()}
    assert {"fastgen fixed512", "openvino split256", "vllm nochunk"} <= names
    few = chosen("--only", "openvino split", "--only", "fixed512")
    assert {each.engine for each in few} == {"openvino", OURS}
    assert {each.name for each in few} < names


def test_workloads_are_chosen_and_configurations_without_any_go() -> None:
    found = chosen("--workload", "W4", "--workload", "W1")
    assert {each.workloads for each in found} <= {(Name.DECODE, Name.SINGLE)}
    assert "openvino split64" not in {each.name for each in found}


def test_fields_of_the_runner_reach_this_engine_alone() -> None:
    found = chosen("--runner", '{"block_size": 32}', "--also", 'int8={"quantization": "Int8"}')
    for each in found:
        assert ("runner" in each.arguments) == (each.engine == OURS)
    (int8,) = [each for each in found if each.label == "int8"]
    assert int8.arguments["runner"] == {"block_size": 32, "quantization": "Int8"}
    assert int8.is_other_precision
    assert int8.workloads == (Name.SINGLE,)


def test_fields_of_the_runner_get_their_types() -> None:
    given = typed(RunnerConfig, {"dtype": "BFloat16", "block_size": 32})
    assert given == {"dtype": DType.BFLOAT16, "block_size": 32}
    assert isinstance(given["dtype"], DType)
    with pytest.raises(ValueError, match="no setting wings"):
        typed(RunnerConfig, {"wings": 2})


def test_an_unknown_workload_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read_options(["--workload", "W9"])
    assert "W9" in capsys.readouterr().err
