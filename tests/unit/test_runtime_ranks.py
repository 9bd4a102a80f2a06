"""What ranks tell one another, and the memory that each of them has and needs."""

import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_model import CONFIG, tensor_shapes, write_tiny_model

from fastgen_api.spec import DType
from fastgen_kernels.ragged import RaggedBatch
from fastgen_runtime.device import ranks as ranks_module
from fastgen_runtime.device.loading import Loader
from fastgen_runtime.device.parallel import Group
from fastgen_runtime.device.ranks import Member, Ranks
from fastgen_runtime.engine import cores
from fastgen_runtime.engine.rank_channel import (
    Begin,
    Connection,
    Failed,
    Forward,
    Loaded,
    RankError,
)
from fastgen_runtime.engine.runner_config import RunnerConfig
from fastgen_runtime.models.architectures import config_from_hf
from fastgen_runtime.models.capacity import Packing, weight_bytes
from fastgen_runtime.models.checkpoint import open_checkpoint
from fastgen_runtime.models.preflight import Demand, Offer, plan_memory, preflight
from fastgen_runtime.models.shard import Shard, check_size
from fastgen_runtime.startup_error import StartupError

GIB = 1 << 30
LLAMA_8B = CONFIG | {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
}
DEMAND = Demand(DType.BFLOAT16, Packing.LAYERS, 8192, 64, 512, 16)


@pytest.fixture
def ends() -> tuple[Connection, Connection]:
    ours, theirs = socket.socketpair()
    ours.settimeout(0.2)
    return Connection(ours), Connection(theirs)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Ranks, list[Connection]]]:
    """Three ranks, of which the others are this test's ends of their connections."""
    monkeypatch.setattr(ranks_module, "_BLAME_SECONDS", 0.05)
    members, others = [], []
    for rank in (1, 2):
        ours, theirs = socket.socketpair()
        process = subprocess.Popen(["sleep", "infinity"])
        members.append(Member(rank, process, Connection(ours)))
        others.append(Connection(theirs))
    group = Group(Shard(0, 3), os.memfd_create("ranks"), torch.device("cpu"), 1)
    ranks = Ranks(tuple(members), group)
    yield ranks, others
    for member in members:
        member.process.kill()
    ranks.close()


def test_a_step_arrives_as_it_was_sent(ends: tuple[Connection, Connection]) -> None:
    batch = RaggedBatch.of([0, 30], [3, 1], [[7], [5, 2**31 - 1, 9, 1]], 8)
    ends[0].send(Forward.of(batch, np.array([4, 5, 6, 128255])))
    ends[0].send(Begin(7))
    forward = ends[1].receive()
    assert isinstance(forward, Forward)
    read, token_ids = forward.read(8)
    for name in ("starts", "lengths", "block_tables", "positions", "write_slots"):
        np.testing.assert_array_equal(getattr(read, name), getattr(batch, name))
        assert getattr(read, name).dtype == np.int64
    assert token_ids.tolist() == [4, 5, 6, 128255]
    assert ends[1].receive() == Begin(7)
    assert not ends[1].has_message()


def test_last_words_arrive_before_the_end(ends: tuple[Connection, Connection]) -> None:
    words = Failed("OutOfMemory", "its part does not fit")
    ends[1].send(words)
    ends[1].close()
    assert ends[0].receive() == words
    assert ends[0].has_message(), "the end is something to receive"
    with pytest.raises(EOFError):
        ends[0].receive()
    with pytest.raises(OSError, match="Broken pipe"):
        ends[0].send(Begin(1))


def test_sending_to_one_that_does_not_read_ends(ends: tuple[Connection, Connection]) -> None:
    tables = np.zeros((256, 4096), np.int64)
    batch = RaggedBatch(np.zeros(256, np.int64), np.ones(256, np.int64), tables, 16)
    with pytest.raises(TimeoutError):
        ends[0].send(Forward.of(batch, np.zeros(256, np.int64)))


@pytest.mark.timeout(30)
def test_a_rank_that_has_loaded_before_another_is_not_forgotten(
    started: tuple[Ranks, list[Connection]],
) -> None:
    ranks, (late, early) = started
    early.send(Loaded(200))
    timer = threading.Timer(0.5, late.send, [Loaded(100)])  # many looks at both later
    timer.start()
    assert ranks.wait_until_loaded() == [100, 200]
    timer.join()


@pytest.mark.timeout(30)
def test_a_look_at_how_ranks_are_takes_nothing_from_who_waits_for_them(
    started: tuple[Ranks, list[Connection]],
) -> None:
    ranks, others = started
    for end in others:
        end.send(Loaded(100))
    ranks.check()
    assert ranks.wait_until_loaded() == [100, 100]
    others[1].send(Failed("EngineFailed", "no more"))
    with pytest.raises(RankError, match="rank 2: no more"):
        ranks.check()


@pytest.mark.parametrize(
    ("size", "sentence"),
    [
        (3, "--x is 3: the model's 32 heads cannot be split in 3 equal parts; "
            "it may be 1, 2, 4, 8, 16 or 32"),
        (64, "--x is 64: the model's 32 heads cannot be split in 64 equal parts; "
             "it may be 1, 2, 4, 8, 16 or 32"),
    ],
)  # fmt: skip
def test_sizes_that_work_are_told(size: int, sentence: str) -> None:
    config = config_from_hf(LLAMA_8B)
    for allowed in (1, 2, 4, 8, 16, 32):
        check_size(config, allowed, "--x")
    with pytest.raises(StartupError) as told:
        check_size(config, size, "--x")
    assert str(told.value) == sentence


def test_each_rank_of_llama_3_8b_holds_its_part() -> None:
    config, shapes = config_from_hf(LLAMA_8B), tensor_shapes(LLAMA_8B)
    rank = Shard(1, 4).config(config)
    weights = weight_bytes(rank, shapes, 2, packing=Packing.LAYERS, ranks=4)
    shared = 2 * 128256 * 4096 + 65 * 4096
    assert weights.resident == 2 * (shared + (8_030_261_248 - shared) // 4)
    offer = Offer(48 * GIB, 100 * GIB, GIB // 4, 90)
    whole = plan_memory(config, shapes, DEMAND, offer.share(4))
    part = plan_memory(rank, shapes, replace(DEMAND, ranks=4), offer.share(4))
    assert part.request_bytes == whole.request_bytes // 4
    assert part.offered_bytes == whole.offered_bytes
    assert whole.num_blocks == 0 < part.num_blocks


def test_a_model_too_large_for_its_ranks_is_refused_with_the_numbers_of_each() -> None:
    rank = Shard(0, 2).config(config_from_hf(LLAMA_8B))
    offer = Offer(8 * GIB, 60 * GIB, GIB // 4, 90).share(2)
    assert (offer.limit_bytes, offer.resident_bytes) == (4 * GIB, GIB // 4)
    with pytest.raises(StartupError, match=r"does not fit 2 ranks; each has: weights 8\d\d\d MiB"):
        preflight(rank, tensor_shapes(LLAMA_8B), replace(DEMAND, ranks=2), offer)


def test_ranks_share_the_memory_and_the_fullest_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """4 GiB for two ranks, of which one holds 1 GiB and the other half of that."""
    folder = write_tiny_model(tmp_path, max_position_embeddings=1 << 20)
    monkeypatch.setattr(cores, "memory_limit_bytes", lambda: 4 * GIB)
    monkeypatch.setattr(cores, "memory_available_bytes", lambda: 64 * GIB)
    threads = torch.get_num_threads()
    config = RunnerConfig(dtype=DType.FLOAT32, block_size=16, threads=1)
    two = Loader(open_checkpoint(folder), replace(config, tensor_parallel_size=2), rank=1)
    one = Loader(open_checkpoint(folder), config)
    torch.set_num_threads(threads)
    fullest, alone = two.num_blocks([GIB // 2, GIB]), one.num_blocks([GIB])
    assert two.num_blocks([GIB, GIB]) == fullest
    two_bytes, one_bytes = (loader.cache(1).nbytes for loader in (two, one))
    assert two_bytes == one_bytes // 2
    # 90 % of 2 GiB less 1 GiB, against 90 % of 4 GiB less 1 GiB; both less what steps hold.
    held = GIB * 9 / 5 - GIB - fullest * two_bytes
    assert held == pytest.approx(GIB * 18 / 5 - GIB - alone * one_bytes, rel=0.02)
    assert 320 << 20 < held < 400 << 20


def test_ranks_share_the_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = open_checkpoint(write_tiny_model(tmp_path))
    monkeypatch.setattr(cores, "available_threads", lambda: 7)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    threads = torch.get_num_threads()
    try:
        for size, expected in ((1, 7), (2, 3), (4, 1)):
            Loader(checkpoint, RunnerConfig(tensor_parallel_size=size))
            assert torch.get_num_threads() == expected
    finally:
        torch.set_num_threads(threads)
