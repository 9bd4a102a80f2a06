"""What reaches a process is what the operator wrote."""

import re
from urllib.parse import quote

import pytest
from observed_downloads import CACHE, HUB, made

from fastgen_api.spec import Cache, Model, Spec
from fastgen_operator.delivery import Delivered, Delivery, JobStep


def expanded(argument: str, variables: dict[str, str]) -> str:
    """An argument as the kubelet passes it on: `$$` is `$`, `$(NAME)` the value of a variable."""
    pattern = r"\$\$|\$\(([^)]*)\)"
    return re.sub(pattern, lambda found: variables.get(found[1] or "", found[0][-1:]), argument)


@pytest.mark.parametrize("source", ["https://$(HF_TOKEN)/a$$b/$HOME/m.gguf", "hf://$(HF_TOKEN)/m"])
@pytest.mark.parametrize("cache", [CACHE, Cache()])
def test_no_variable_gets_into_an_argument(source: str, cache: Cache) -> None:
    """Old resources may hold what the definition refuses by now."""
    model = Model(source, served_name="a$(HF_TOKEN)", token_secret_ref=HUB.token_secret_ref,
                  cache=cache)  # fmt: skip
    spec = Spec(model)
    path = "files/$(HF_TOKEN)$$/m.gguf"
    delivery = Delivery(Delivered(key="k", path=path, revision="$(HF_TOKEN)"), job=JobStep.MAKE)
    children = made(spec, delivery)
    pods = [each["spec"]["template"]["spec"] for (kind, _), each in children.items()
            if kind in ("Job", "Deployment")]  # fmt: skip
    containers = [each for pod in pods
                  for each in (*pod.get("initContainers", ()), *pod["containers"])]  # fmt: skip
    told = {argument.partition("=")[0]: expanded(argument, {"HF_TOKEN": "secret"})
            for container in containers for argument in container.get("args", ())}  # fmt: skip
    assert told["--source"] == f"--source={source}"
    assert told["--served-name"] == "--served-name=a$(HF_TOKEN)"
    assert told["--model"] == f"--model=file:///models/{quote(path)}"
    assert not [each for each in told.values() if "secret" in each]
