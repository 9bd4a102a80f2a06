"""The harness that counts the operator's writes must not miss or invent any."""

import json

from operator_process import audited


def line(user: object, verb: str = "patch", at: str = "2025-01-02T03:04:05.5Z") -> str:
    event = {"user": user, "verb": verb, "requestURI": "/x", "requestReceivedTimestamp": at}
    return json.dumps(event)


def test_nameless_and_half_written_events_are_lived_with() -> None:
    nameless = json.dumps(json.loads(line({})) | {"user": None})
    text = "\n".join([line({"username": "a"}), line({}), nameless, line({"username": "b"})[:40]])
    assert list(audited(text, 0)) == [("a", "patch /x"), ("", "patch /x"), ("", "patch /x")]
    assert list(audited("", 0)) == []


def test_only_what_came_since_is_told() -> None:
    text = (
        line({"username": "a"}, at="2025-01-01T00:00:00Z") + "\n" + line({"username": "b"}) + "\n"
    )
    assert [user for user, _ in audited(text, 1735700000)] == ["b"]
