"""``kvpager bench tiers`` at a tiny size: all figures are there, nothing is timed that is wrong, nothing is left."""

import json
import math
import os
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvpager import native
from kvpager.bench import fio, tiers, tiers_decode, tiers_disk, tiers_first_token, tiers_host, tiers_restart
from kvpager.bench.tiers_scale import TierScale
from kvpager.bench.tiers_traffic import Traffic
from kvpager.bench.tiers_waits import Waits, waits_of_this_thread
from kvpager.errors import ConfigError, InvariantError
from kvpager.eviction.lru import LRU
from kvpager.memory.layout import KVLayout
from kvpager.tiers.host import HostStore
from tests.tiny_model import tiny_model

TINY = TierScale(
    seconds=0.0,
    rounds=2,
    chunk_pages=6,
    disk_chunks=3,
    restart_bytes=(1 << 20, 2 << 20),
    prefixes=(64,),
    decode_sequences=(1, 2),
    decode_tokens=40,
    pool="8 MiB",
    tier="8 MiB",
)
SMALL = KVLayout(layers=2, kv_heads=2, head_dim=16, dtype="bfloat16", page_size=32)  # pages of 8 KiB

needs_native = pytest.mark.skipif(native.module() is None, reason=f"no native kernels: {native.why_not()}")
needs_fio = pytest.mark.skipif(not fio.is_installed(), reason=fio.REMEDY)


@needs_native
def test_the_host_figures() -> None:
    found = {result.name: result for result in tiers_host.measure(TINY, SMALL)}
    assert {name: result.target for name, result in found.items() if result.target is not None} == {
        "host_copy_memcpy_share": 0.9,
        "host_copy_memcpy_share/back": 0.9,
    }
    assert all(math.isfinite(result.value) and result.value > 0 for result in found.values())


def test_the_disk_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fio.FioFile, "_run", lambda *_: 0.01)
    found = {result.name: result for result in tiers_disk.measure(TINY, tmp_path, SMALL)}
    assert {name: result.target for name, result in found.items() if result.target is not None} == {
        "disk_read_fio_share": 0.9,
        "disk_write_fio_share": 0.9,
        "disk_write_fio_share/from_host": 0.9,
    }
    assert all(math.isfinite(result.value) and result.value > 0 for result in found.values())


def test_without_fio_it_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fio, "is_installed", lambda: False)
    assert tiers.PARTS["disk"](TINY, tmp_path) == []
    assert "disk_read_fio_share" in (shown := capsys.readouterr().err)
    assert "apt install fio" in shown


@needs_fio
def test_fio_moves_what_it_is_told(tmp_path: Path) -> None:
    file = fio.FioFile(tmp_path / "fio.bin", 16 * 8192, 8192, jobs=2, is_direct=False)
    assert file.write(0, 16) >= 0
    assert (tmp_path / "fio.bin").stat().st_size == 16 * 8192
    assert file.read(4, 7) >= 0
    with pytest.raises(ConfigError, match="fio failed"):
        replace(file, path=tmp_path).read(0, 4)


def test_a_restart_finds_every_page(tmp_path: Path) -> None:
    found = {result.name: result for result in tiers_restart.measure(TINY, tmp_path, SMALL)}
    assert list(found) == ["restart_0.00104858gb_seconds", "restart_0.00209715gb_seconds", _EXTRAPOLATED]
    assert list(tmp_path.iterdir()) == []


def test_the_limit_is_that_of_20_gb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers_restart, "_fill", lambda *_: 1)
    monkeypatch.setattr(tiers_restart, "_open", lambda *_: 0.5)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(0, 0, 1 << 50))  # type: ignore[attr-defined]
    small, large, beyond = tiers_restart.measure(TierScale(), tmp_path, SMALL)
    assert (small.name, small.target) == ("restart_5gb_seconds", None)
    assert (large.name, large.target) == ("restart_20gb_seconds", 2.0)
    assert (beyond.name, beyond.value) == (_EXTRAPOLATED, 0.5)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(0, 0, 10**10))  # type: ignore[attr-defined]
    assert [result.name for result in tiers_restart.measure(TierScale(), tmp_path, SMALL)] == ["restart_5gb_seconds"]


_EXTRAPOLATED = "restart_100gb_seconds/extrapolated"


def test_a_wrong_byte_is_not_timed() -> None:
    store = HostStore(SMALL.block_stride, 4, LRU(4))
    traffic = Traffic([store], 4, SMALL)
    traffic.stamp(1)
    traffic.down(1)
    traffic.check(1)
    traffic.stamp(2)  # what came down is not what the device holds now
    with pytest.raises(InvariantError, match="it was not timed"):
        traffic.check(1)
    store._arena.blocks[0, 5] ^= 1  # a bit falls over in the tier
    with pytest.raises(InvariantError, match="did not come back"):
        traffic.up(1)
    traffic.close()


def test_pages_that_find_no_room_are_not_timed() -> None:
    traffic = Traffic([HostStore(SMALL.block_stride, 3, LRU(3))], 4, SMALL)
    with pytest.raises(InvariantError, match="refused"):
        traffic.down(1)
    traffic.close()


@needs_native
def test_the_report_and_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers, "QUICK", TINY)
    monkeypatch.setitem(tiers.PARTS, "folder", lambda scale, folder: (folder / "left").write_text("x") and [])
    shown = json.loads(json.dumps(tiers.run_parts(["folder"], True, str(tmp_path))))
    assert shown["name"] == "tiers"
    assert "file access" in shown["hardware"]
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConfigError, match="is not there"):
        tiers.run_parts([], True, str(tmp_path / "nowhere"))


def test_the_pages_differ_by_chunk_and_place() -> None:
    traffic = Traffic([], 3, SMALL)
    traffic.stamp(7)
    blocks = traffic.arena.blocks[traffic.sources]
    assert len(np.unique(blocks, axis=0)) == 3
    traffic.stamp(8)
    assert not np.array_equal(traffic.arena.blocks[traffic.sources], blocks)


def test_what_the_watched_thread_does_is_counted_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "file"

    def write() -> None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT)
        os.write(fd, b"x")
        os.close(fd)

    waits = Waits()
    with waits_of_this_thread(None, waits):
        worker = threading.Thread(target=write)
        worker.start()
        worker.join()
    assert (waits.calls.total(), waits.kernel, waits.seconds) == (0, 0, 0.0)
    with waits_of_this_thread(None, waits):
        write()
    assert waits.calls == {"open": 1, "write": 1, "close": 1}
    assert waits.kernel in (0, 1)  # 0 where the kernel does not say
    assert waits.seconds > 0
    assert os.open.__name__ == "open"


def test_first_tokens_from_each_tier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)  # no server
    monkeypatch.setattr(tiers_first_token, "PREFIX", 64)
    waits = Waits()
    found = {each.name: each for each in tiers_first_token.measure(TINY, tmp_path, tiny_model(), waits)}
    assert {name: each.target for name, each in found.items() if each.target is not None} == {
        "ttft_64_recompute_vs_disk": 10.0
    }
    for name in ("ttft_64_ms/recompute", "ttft_64_ms/device", "ttft_64_ms/host", "ttft_64_load_ms/disk"):
        assert found[name].value > 0
    assert 0 <= found["ttft_64_overlap_bound/disk"].value <= 1
    assert waits.seconds == 0
    assert not waits.calls


def test_decoding_while_pages_are_written(tmp_path: Path) -> None:
    waits = Waits()
    found = {each.name: each for each in tiers_decode.measure(TINY, tmp_path, tiny_model(), waits)}
    assert {name for name, each in found.items() if each.target == 0.03} == {
        "write_through_decode_cost",
        "write_through_decode_cost/1",
    }
    assert found["decode_rate"].value > 0
    assert waits.seconds == 0
    assert list(tmp_path.iterdir()) == []


def test_other_tokens_are_not_timed(tmp_path: Path) -> None:
    runs = tiers_decode._Runs(2, TINY, tmp_path / "decode", tiny_model(), Waits())
    runs.plain()
    runs._outputs[0][-1] ^= 1
    with pytest.raises(InvariantError, match="other tokens"):
        runs.written_through()
