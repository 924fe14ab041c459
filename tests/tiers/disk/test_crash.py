"""O-18: ended at any point, by kill -9 or by a loss of power, a folder opens and every page is whole or absent."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiers.disk import killed
from tests.tiers.disk.faulty_files import TracedFiles, replay
from tests.tiers.disk.pages import disk_bytes, found, open_store, put

_HEAVY = [pytest.param(seed, marks=pytest.mark.heavy) for seed in range(2, 20)]


def assert_opens(folder: Path, capacity: int = killed.CAPACITY) -> list[int]:
    """The pages that are there, each byte for byte; and the store takes others."""
    store = open_store(folder, capacity)
    assert disk_bytes(folder) <= capacity
    assert not list(folder.glob("*.tmp"))
    there = found(store, range(60))
    store.check()
    assert put(store, 100, 101) == [None, None]
    assert found(store, (100, 101)) == [100, 101]
    store.close()
    return there


@pytest.mark.parametrize("seed", [1, *_HEAVY])
def test_kill_at_every_call(fast_folder: Path, seed: int) -> None:
    program = [sys.executable, killed.__file__, str(fast_folder), str(seed)]
    calls = int(subprocess.run(program, check=True, capture_output=True, text=True).stdout)
    assert calls > 40
    most = 0
    for number in range(calls):
        for name in ("before", "after"):
            folder = fast_folder / f"{number}-{name}"
            if not folder.exists():
                assert (number, name) == (0, "before")
                continue
            most = max(most, len(assert_opens(folder)))
    whole = assert_opens(fast_folder / "whole")
    assert whole == list(range(50 - len(whole), 50))  # what is expected without a kill
    assert most >= len(whole) == 36


@pytest.mark.parametrize("seed", [1, *_HEAVY])
def test_lost_and_reordered_writes(fast_folder: Path, seed: int) -> None:
    files = TracedFiles()
    store = open_store(fast_folder / "kv", killed.CAPACITY, files=files)
    promised: dict[int, list[int]] = {}  # length of the trace -> pages that a sync made durable
    for number in range(0, 50, 5):
        put(store, *range(number, number + 5))
        if number % 20 == 15:
            store.sync()
            promised[len(files.trace)] = found(store, range(50))
    store.close()
    promised[len(files.trace)] = list(range(14, 50))
    rng = random.Random(seed)
    for cut in [*promised, *(rng.randrange(len(files.trace)) for _ in range(40))]:
        folder = fast_folder / f"{cut}-{rng.random()}"
        replay(files.trace[:cut], folder, rng.randrange(1 << 30))
        there = assert_opens(folder)
        assert set(promised.get(cut, [])) <= set(there)


def test_without_any_loss_a_replay_is_the_folder(fast_folder: Path) -> None:
    """The control of the tests above: what they lose is lost by ``replay``, not by its carelessness."""
    files = TracedFiles()
    store = open_store(fast_folder / "kv", killed.CAPACITY, files=files)
    put(store, 1, 2, 3)
    store.close()
    replay(files.trace, fast_folder / "replayed", seed=1)
    assert assert_opens(fast_folder / "replayed") == [1, 2, 3]


def test_lost_writes_do_lose_pages(fast_folder: Path) -> None:
    files = TracedFiles()
    store = open_store(fast_folder / "kv", killed.CAPACITY, files=files)
    for number in range(4):  # in one slab
        put(store, number)
    kept = []
    for seed in range(20):
        replay(files.trace, fast_folder / str(seed), seed)
        kept.append(len(assert_opens(fast_folder / str(seed))))
    assert 0 <= min(kept) < max(kept) <= 4
