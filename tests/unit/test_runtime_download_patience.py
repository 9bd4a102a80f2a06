"""How long a download waits, and when it gives up: time is data here."""

import string
from collections.abc import Callable
from datetime import UTC, datetime
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastgen_api.names import StartupFailure
from fastgen_runtime.sources.patience import (
    Limits,
    Patience,
    StoppedError,
    limits_from,
    retry_after_seconds,
    wait_seconds,
)
from fastgen_runtime.sources.trouble import (
    DownloadError,
    PassingError,
    UnreachedError,
    host_of,
    without_secrets,
)

NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "40"}, 40),
        ({"retry-after": " 0 "}, 0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "Thu, 01 Jan 2026 12:01:00 GMT"}, 60),
        ({"retry-after": "Thu, 01 Jan 2026 11:00:00 GMT"}, 0),
        (
            {
                "retry-after": "Thu, 01 Jan 2026 13:01:00 GMT",
                "date": "Thu, 01 Jan 2026 13:00:30 GMT",
            },
            30,
        ),
        ({"ratelimit": '"api";r=0;t=55'}, 55),
        ({"ratelimit": '"api";r=3;t=55'}, None),
        ({"retry-after": "7", "ratelimit": '"api";r=0;t=55'}, 7),
    ],
)
def test_what_a_server_asks_for(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after_seconds(headers, NOW) == seconds


@given(attempt=st.integers(1, 10**6), draw=st.floats(0, 1))
def test_waits_grow_to_a_minute_and_differ(attempt: int, draw: float) -> None:
    seconds = wait_seconds(attempt, None, draw)
    assert 0.5 <= seconds <= 60
    assert seconds <= wait_seconds(attempt, None, 1) == min(60, 2 ** min(attempt - 1, 10))


@given(asked=st.floats(0, 10**5), attempt=st.integers(1, 99), draw=st.floats(0, 1))
def test_a_server_is_never_asked_before_it_wishes(asked: float, attempt: int, draw: float) -> None:
    assert asked <= wait_seconds(attempt, asked, draw) <= asked + 10


class Clock:
    """Time that only waiting moves."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.waits: list[float] = []
        self.told: list[str] = []

    def pause(self, seconds: float) -> None:
        self.waits.append(round(seconds, 3))
        self.now += seconds

    def patience(self, limits: Limits) -> Patience:
        return Patience(limits, self.told.append, lambda: self.now, self.pause, lambda: 1.0)


def failing(*troubles: Exception) -> Callable[[], str]:
    """An attempt that meets these, and then succeeds."""
    waiting = list(troubles)

    def attempt() -> str:
        if waiting:
            raise waiting.pop(0)
        return "done"

    return attempt


def moved(sentence: str) -> PassingError:
    trouble = PassingError(sentence)
    trouble.has_moved = True
    return trouble


def test_waits_double_until_something_moves() -> None:
    clock = Clock()
    troubles = [
        PassingError("a"),
        PassingError("a"),
        PassingError("a"),
        moved("b"),
        PassingError("a"),
    ]
    assert clock.patience(Limits()).persist(failing(*troubles)) == "done"
    assert clock.waits == [1, 2, 4, 1, 2]
    assert clock.told[2:4] == ["a: again in 4 s", "b: again in 1 s"]


def test_patience_ends_without_progress() -> None:
    clock = Clock()
    patience = clock.patience(Limits(patience_seconds=100))
    with pytest.raises(DownloadError, match="x, and nothing has come for 63 s, of 100 s") as raised:
        patience.persist(failing(*[PassingError("x")] * 99))
    assert raised.value.reason is StartupFailure.DOWNLOAD_FAILED
    assert clock.now == 1063, "the next wait would have ended too late"


def test_progress_renews_patience() -> None:
    clock = Clock()
    patience = clock.patience(Limits(patience_seconds=100))
    rounds = 0

    def attempt() -> str:
        nonlocal rounds
        rounds += 1
        if rounds == 30:
            return "done"
        clock.now += 90
        patience.note_progress()
        raise moved("x")

    assert patience.persist(attempt) == "done"


def test_a_wish_beyond_patience_ends_it_at_once() -> None:
    clock = Clock()
    patience = clock.patience(Limits(patience_seconds=100))
    with pytest.raises(DownloadError, match="throttled, and it asks to wait for 3600 s"):
        patience.persist(failing(PassingError("throttled", 3600)))
    assert clock.waits == []


def test_a_server_that_never_answered_is_given_up_sooner() -> None:
    clock = Clock()
    limits = Limits(patience_seconds=1000, contact_seconds=10)
    with pytest.raises(DownloadError, match="of 10 s that are borne"):
        clock.patience(limits).persist(failing(*[UnreachedError("x")] * 99))
    answered = [PassingError("x"), *[UnreachedError("x")] * 8]
    assert clock.patience(limits).persist(failing(*answered)) == "done"


def test_a_wish_holds_for_all_connections() -> None:
    clock = Clock()
    patience = clock.patience(Limits())
    first = failing(PassingError("throttled", 40))

    def pause(seconds: float) -> None:
        """Meanwhile another connection wants to ask, too."""
        clock.waits.append(seconds)
        if len(clock.waits) == 1:
            patience.persist(lambda: "another")
        clock.now += seconds

    patience._pause = pause
    patience.persist(first)
    assert clock.waits[0] == clock.waits[1] == 45


def test_a_stop_ends_all_waits() -> None:
    patience = Patience(Limits(), lambda sentence: patience.stop())
    with pytest.raises(StoppedError):
        patience.persist(failing(*[PassingError("x")] * 99))


def test_limits_of_the_environment() -> None:
    default = Limits(30, 300, 20)
    assert limits_from({}, default) == default
    environment = {
        "FASTGEN_DOWNLOAD_STALL_SECONDS": "2.5",
        "FASTGEN_DOWNLOAD_PATIENCE_SECONDS": "10",
    }
    assert limits_from(environment, default) == Limits(2.5, 10, 10)
    for text in ("0", "-1", "nan", "inf", "much"):
        with pytest.raises(DownloadError, match="FASTGEN_DOWNLOAD_STALL_SECONDS is") as raised:
            limits_from({"FASTGEN_DOWNLOAD_STALL_SECONDS": text}, default)
        assert raised.value.reason is StartupFailure.CONFIG_INVALID


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("a https://h/p?sig=x b", "a https://h/p b"),
        ("'https://h/p.gguf?a=1#sha256=0'", "'https://h/p.gguf'"),
        ("https://me:word@h/p", "https://h/p"),
        ("Bearer hf_secret", "Bearer [HF_TOKEN]"),
        ("hf://a/b@c", "hf://a/b@c"),
        ("https://hf_secret.host/p", "https://[HF_TOKEN].host/p"),
        ("https://HF_SECRET/p and hf_Secret", "https://[HF_TOKEN]/p and [HF_TOKEN]"),
        ("https://h/hf%5Fsecret/%68f%5f%73ecret", "https://h/[HF_TOKEN]/[HF_TOKEN]"),
    ],
)
def test_secrets_are_left_out(text: str, plain: str) -> None:
    assert without_secrets(text, "hf_secret") == plain


@given(token=st.text(string.ascii_letters + string.digits + "-._~+/=", min_size=1, max_size=40))
def test_no_spelling_of_a_token_is_told(token: str) -> None:
    every = "".join(f"%{ord(character):02X}" for character in token)
    for spelling in (token, token.lower(), token.upper(), quote(token, safe=""), every):
        assert without_secrets(f"<{spelling}>", token) == "<[HF_TOKEN]>"


def test_hosts() -> None:
    assert host_of("https://me:word@h:8443/p?q") == "h:8443"
