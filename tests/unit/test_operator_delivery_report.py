"""Whatever stands where a download reports, the status can be written and the pods be made."""

from pathlib import Path
from typing import Any
from urllib.parse import unquote

import jsonschema
import msgspec
import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from observed_downloads import (
    CACHED,
    COMMIT,
    IN_PODS,
    PATH,
    claim,
    delivered,
    downloading,
    job,
    made,
    pod,
    read,
    report,
    running,
    seen,
)
from observed_objects import NOW, OWNER, deployment, message, observed

from fastgen_api.delivery import DeliveryField
from fastgen_api.names import StartupFailure
from fastgen_api.spec import Spec
from fastgen_operator.delivery import MODELS_ANNOTATION, key_of, remembered_models
from fastgen_operator.delivery_report import MAX_BYTES, MAX_MESSAGE, readable
from fastgen_operator.observed import Problem
from fastgen_operator.situation import Outcome
from fastgen_operator.status import MAX_MESSAGE as MAX_CONDITION
from fastgen_operator.status import status_of

DEFINITION = Path(__file__).resolve().parents[2] / "crds/fastgendeployments.fastgen.dev.yaml"
SCHEMA = yaml.safe_load(DEFINITION.read_text())["spec"]["versions"][0]["schema"]
STATUS = jsonschema.Draft202012Validator(SCHEMA["openAPIV3Schema"]["properties"]["status"])
FIELDS = [value for name, value in vars(DeliveryField).items() if name.isupper()]
TEXT = st.one_of(
    st.text(max_size=50),
    st.integers(-2, 2**80).map(str),
    st.sampled_from(["9" * 5000, "x " * 40000, "../../etc", "/etc", "a//b", "٣", "", PATH, COMMIT,
                     "Downloading", "Delivered", "Failed", *StartupFailure]),
)  # fmt: skip
REPORTS = st.dictionaries(st.sampled_from(FIELDS), TEXT, max_size=3).map(
    lambda fields: {name: text for name, text in fields.items() if name != DeliveryField.KEY}
)
JOBS = st.sampled_from([{}, {"ended": 1.0}, {"ended": 100.0}, {"failed": "exit code 1"}])


def check(status: Any) -> None:
    STATUS.validate(status)
    assert 0 <= status["model"].get("sizeBytes", 0) <= MAX_BYTES
    assert all(len(each["message"]) <= MAX_CONDITION for each in status["conditions"])


@settings(max_examples=300)
@example(delivered()["data"], {"path": "../../etc"}, {"ended": 1.0}, CACHED, False)
@example(delivered(IN_PODS)["data"], {"path": "/etc"}, {"ended": 1.0}, IN_PODS, False)
@given(
    right=st.sampled_from([{}, delivered()["data"], downloading(3)["data"]]),
    fields=REPORTS,
    ends=JOBS,
    spec=st.sampled_from([CACHED, IN_PODS]),
    tries=st.booleans(),
)
def test_any_report_gives_a_status_and_pods(
    right: dict[str, str], fields: dict[str, str], ends: dict[str, Any], spec: Spec, tries: bool
) -> None:
    pods = (pod(spec=spec),) if tries else ()
    told = right | fields | {DeliveryField.KEY: key_of("chat", spec.model)}
    found = seen(job(spec, **ends), claim(), report(spec, **told), pods=pods)
    delivery = read(spec, found)
    check(status_of(OWNER, found, NOW, {}, Outcome(delivery=delivery)))
    children = made(spec, delivery)
    if delivery.model is None:
        return
    (container,) = children["Deployment", "chat-replica"]["spec"]["template"]["spec"]["containers"]
    (told,) = [each for each in container["args"] if each.startswith("--model=")]
    path = unquote(told.removeprefix("--model=file:///models/"))
    assert not {"", ".."} & set(path.split("/"))


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("sizeBytes", "9" * 5000),
        ("sizeBytes", str(MAX_BYTES + 1)),
        ("downloadedBytes", "-1"),
        ("reason", "because it is so"),
        ("reason", ""),
        ("state", "Lost"),
        ("path", "/etc/passwd"),
        ("path", "a/../../b"),
        ("path", "a" * 2000),
        ("path", "a\nb"),
        ("revision", "main"),
        ("revision", "a" * 65),
        ("colour", "green"),
    ],
)
def test_what_says_nothing_is_left_out(field: str, text: str) -> None:
    assert readable({field: text, "sizeBytes" if field != "sizeBytes" else "path": "7"}) == {
        "sizeBytes" if field != "sizeBytes" else "path": "7"
    }


def test_what_a_download_reports_is_read() -> None:
    told = delivered()["data"] | {"downloadedBytes": str(MAX_BYTES), "reason": "DownloadFailed"}
    assert readable(told) == told
    long = readable({"message": "no\n" + " room" * 10000})["message"]
    assert long.startswith("no room room")
    assert len(long) == MAX_MESSAGE


@pytest.mark.parametrize(
    "changes",
    [
        {"path": "../x"},
        {"path": "a" * 2000},
        {"revision": "$(HF_TOKEN)"},
        {"sizeBytes": 2**63},
        {"sizeBytes": -1},
        {"key": ""},
        {"claimUid": "u" * 100},
    ],
)
def test_what_was_never_delivered_is_not_remembered(changes: dict[str, Any]) -> None:
    held = running()
    annotations = held["metadata"]["annotations"]
    (model,) = msgspec.json.decode(annotations[MODELS_ANNOTATION])
    assert remembered_models(held)
    annotations[MODELS_ANNOTATION] = msgspec.json.encode([model | changes]).decode()
    assert remembered_models(held) == ()


@given(reason=st.text(max_size=20), words=st.text(max_size=20), times=st.integers(1, 9000))
def test_any_failure_gives_a_status(reason: str, words: str, times: int) -> None:
    failure = Problem(reason, words * times)
    found = status_of(OWNER, observed(deployment("chat-replica", 1)), NOW, {}, Outcome(failure))
    check(found)
    assert message(found, "Stalled") == failure.message[:MAX_CONDITION]
