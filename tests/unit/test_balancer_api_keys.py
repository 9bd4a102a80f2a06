"""What the data of a Secret means, and what of it does not count."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mounted_secret import MountedSecret

from fastgen_balancer.api_keys import ApiKey, ApiKeyFile, api_keys_of, read_api_keys

ODD = "has a key with a character that is not printable ASCII, or a space"
CLIENTS = st.from_regex(r"[-._a-zA-Z0-9]{1,20}", fullmatch=True)


@pytest.mark.parametrize(
    ("contents", "keys", "faults"),
    [
        ({}, [], []),
        ({"a": b"k1\n"}, [("a", "k1")], []),
        ({"a": b"  k1 \r\n\r\n k2"}, [("a", "k1"), ("a", "k2")], []),
        ({"a": b"k1\nk1"}, [("a", "k1")], []),
        ({"b": b"k", "a": b"k"}, [("a", "k")], ["b has a key that is also a's"]),
        ({"a": b" \n"}, [], ["a has no key"]),
        ({"a": b"k 1"}, [], [f"a {ODD}"]),
        ({"a": b"k\xc3\xa4\nk2"}, [("a", "k2")], [f"a {ODD}"]),
        ({"a": b"x" * 1025}, [], ["a has a key of more than 1024 characters"]),
    ],
)  # fmt: skip
def test_what_a_secret_says(
    contents: dict[str, bytes], keys: list[tuple[str, str]], faults: list[str]
) -> None:
    found = api_keys_of(contents)
    assert [(each.client, each.key) for each in found.keys] == keys
    assert list(found.faults) == faults


@given(st.dictionaries(CLIENTS, st.binary(max_size=60), max_size=6))
def test_no_data_makes_envoy_refuse_its_file(contents: dict[str, bytes]) -> None:
    """Envoy takes no key twice and no empty one; and what is printed shows no key."""
    found = api_keys_of(contents)
    keys = [each.key for each in found.keys]
    assert len(set(keys)) == len(keys)
    assert all(key and key.isascii() and key.isprintable() and " " not in key for key in keys)
    assert {each.client for each in found.keys} <= contents.keys()


def test_a_key_shows_in_no_representation() -> None:
    assert "sk-1" not in repr(api_keys_of({"a": b"sk-1", "b": b"sk-1", "c": b"sk-1 x"}))
    assert repr(ApiKey("a", "sk-1")) == "ApiKey(client='a')"


def test_a_mounted_secret_is_read_in_one_version(tmp_path: Path) -> None:
    secret = MountedSecret(tmp_path / "secret", {"a": "1", "b": "2"})
    assert [each.key for each in read_api_keys(secret.folder).keys] == ["1", "2"]
    secret.replace({"b": "3"})
    assert [(e.client, e.key) for e in read_api_keys(secret.folder).keys] == [("b", "3")]


def test_a_secret_that_is_gone_leaves_the_keys_in_force(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    directory.mkdir()
    secret = MountedSecret(tmp_path / "secret", {"a": "1"})
    ApiKeyFile(secret.folder, directory).update()
    before = (directory / "api-keys.json").read_text()
    with pytest.raises(OSError, match="gone"):
        ApiKeyFile(tmp_path / "gone", directory).update()
    assert (directory / "api-keys.json").read_text() == before
    filter_ = json.loads(before)["resources"][0]["typed_config"]
    assert filter_["credentials"] == [{"key": "1", "client": "a"}]
