"""The pool's books, and what is foretold of the blocks that requests will hold."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_model import request

from fastgen_runtime.engine.blocks import (
    NO_PARENT,
    BlockPool,
    BlocksCorruptedError,
    chain_digest,
    chain_start,
)
from fastgen_runtime.engine.outlook import LengthHistory, Outlook
from fastgen_runtime.engine.request import Request


def digests(*names: int) -> list[bytes]:
    return [chain_digest(NO_PARENT, [name]) for name in names]


def test_the_pool_notices_a_second_release_and_a_lost_block() -> None:
    pool = BlockPool(4, 4)
    held = pool.reserve(2)
    assert held is not None
    assert pool.reserve(3) is None
    pool.share(held)
    pool.release(held)
    pool.check([held])
    pool.release(held)
    with pytest.raises(BlocksCorruptedError, match="twice"):
        pool.release(held)
    with pytest.raises(BlocksCorruptedError, match="blank"):
        pool.share(held)
    lost = pool.reserve(1)
    with pytest.raises(BlocksCorruptedError, match="differ"):
        pool.check([])
    assert lost is not None
    pool.check([lost])


def test_a_known_block_stays_known_until_its_memory_is_needed() -> None:
    pool = BlockPool(3, 4)
    first, second = pool.reserve(2) or []
    a, b = digests(1, 2)
    pool.publish(first, a)
    pool.publish(second, b)
    pool.release([first])
    pool.release([second])
    pool.check([])
    assert pool.num_free == 3
    assert pool.match([a, b], 9) == (first, second)
    pool.share([first])  # used again, and then the last one that was
    pool.release([first])
    blank, oldest = pool.reserve(2) or []
    assert (blank, oldest) == (2, second)
    assert pool.match([a, b], 9) == (first,)
    assert pool.match([b], 9) == ()
    pool.check([[blank, oldest]])


def test_a_match_ends_where_the_chain_is_broken_or_enough_is_found() -> None:
    pool = BlockPool(3, 4)
    blocks = pool.reserve(3) or []
    chain = digests(1, 2, 3)
    for index in (0, 2):
        pool.publish(blocks[index], chain[index])
    assert pool.match(chain, 9) == (blocks[0],)
    pool.publish(blocks[1], chain[1])
    assert pool.match(chain, 9) == tuple(blocks)
    assert pool.match(chain, 2) == tuple(blocks[:2])


def test_of_two_blocks_with_one_content_the_first_is_known() -> None:
    pool = BlockPool(2, 4)
    first, second = pool.reserve(2) or []
    [digest] = digests(1)
    pool.publish(first, digest)
    pool.publish(second, digest)
    assert pool.find(digest) == first
    pool.release([first, second])
    pool.check([])
    with pytest.raises(BlocksCorruptedError, match="free"):
        pool.publish(second, digest)


def test_a_digest_tells_tokens_order_and_beginning() -> None:
    start = chain_digest(NO_PARENT, [1, 2])
    assert start == chain_digest(NO_PARENT, (1, 2))
    others = [
        chain_digest(NO_PARENT, [2, 1]),
        chain_digest(start, [1, 2]),
        chain_digest(chain_start("g"), [1, 2]),
        chain_digest(chain_start("h"), [1, 2]),
        chain_digest(NO_PARENT, [1, 2 + 2**32]),
    ]
    assert len({start, *others}) == 6


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50)), min_size=1, max_size=12),
    st.integers(1, 8),
)
def test_the_predicted_peak_is_never_below_the_real_one(
    sizes: list[tuple[int, int]], block_size: int
) -> None:
    requests = [(Request(request(f"r{i}", *size), i), 0) for i, size in enumerate(sizes)]
    predicted = Outlook(requests, LengthHistory(1000), block_size).peak_blocks()
    real = 0
    for elapsed in range(51):
        held = [p + elapsed for p, output in sizes if elapsed <= output]
        real = max(real, sum(-(-tokens // block_size) for tokens in held))
    assert real <= predicted <= real + len(sizes)


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50)), min_size=1, max_size=12),
    st.integers(1, 200),
)
def test_a_request_fits_when_the_peak_with_it_does(
    sizes: list[tuple[int, int]], num_blocks: int
) -> None:
    *some, last = [(Request(request(f"r{i}", *size), i), 0) for i, size in enumerate(sizes)]
    history = LengthHistory(1000)
    outlook = Outlook(some, history, 4)
    peak = Outlook([*some, last], history, 4).peak_blocks()
    assert outlook.fits(*last, 0, num_blocks) == (peak <= num_blocks)
    outlook.add(*last, 0)
    assert outlook.peak_blocks() == peak


def answered(num_output_tokens: int, max_tokens: int = 1000) -> Request:
    made = Request(request("r", 5, max_tokens), 0)
    made.token_ids += [1] * num_output_tokens
    return made


def test_lengths_are_guessed_before_enough_answers_have_ended() -> None:
    history = LengthHistory(256)
    for _ in range(31):
        history.note(10)
    assert history.expected_remaining(answered(0)) == 256
    assert history.expected_remaining(answered(0, max_tokens=20)) == 20
    assert history.expected_remaining(answered(200)) == 56
    # Longer than expected: as much again.
    assert history.expected_remaining(answered(300)) == 300


def test_lengths_are_learned_as_a_quantile_of_those_that_went_on_as_long() -> None:
    history = LengthHistory(256)
    for length in range(1, 101):
        history.note(length)
    assert history.expected_remaining(answered(0)) == 81
    assert history.expected_remaining(answered(50)) == 91 - 50
    assert history.expected_remaining(answered(100)) == 100
    assert history.expected_remaining(answered(50, max_tokens=60)) == 10


def test_old_lengths_are_forgotten() -> None:
    history = LengthHistory(256)
    for length in [1000] * 600 + [10] * 512:
        history.note(length)
    assert history.expected_remaining(answered(0)) == 10
