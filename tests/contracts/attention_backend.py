"""What every attention backend has to do. A subclass gives ``make``.

All pools are full of NaN before their first use, so a read of a slot that is no token of the sequence shows.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from kvpager import ConfigError, KVLayout, LayerSpec, open_cache
from kvpager.attention import AttentionBackend, LayerOptions
from kvpager.memory.layout import QUANTIZED
from kvpager.tiers.rows import layer_view
from tests.attention.bench import Bench, Extras, fill_arena
from tests.stamp import T

LENGTHS = [1, 3, 4, 5, 7, 8, 9, 16, 17, 31, 32, 33]


class AttentionBackendContract:
    name: str

    def make(self) -> AttentionBackend:
        raise NotImplementedError

    @contextmanager
    def bench(
        self,
        layout: KVLayout,
        query_heads: int,
        extras: Extras | None = None,
        *,
        num_blocks: int = 64,
        byte: int = 0xFF,
    ) -> Iterator[Bench]:
        with open_cache(layout, num_blocks=num_blocks) as cache:
            fill_arena(cache, byte)
            yield Bench(cache, self.make(), query_heads, extras)
            cache.check()

    def test_it_has_a_name(self) -> None:
        assert self.make().name == self.name

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
    @pytest.mark.parametrize(("kv_heads", "query_heads"), [(1, 1), (2, 2), (2, 4), (1, 4), (3, 9)], ids=str)
    def test_prefill_then_decode_then_many_tokens_at_once(self, dtype: str, kv_heads: int, query_heads: int) -> None:
        layout = KVLayout(layers=2, kv_heads=kv_heads, head_dim=8, dtype=dtype, page_size=4)
        for length in LENGTHS:
            with self.bench(layout, query_heads) as bench:
                seq = bench.cache.sequence(T(1, length + 8))
                bench.step({seq: length})
                bench.step({seq: 1})
                bench.step({seq: 7})

    @pytest.mark.parametrize("page_size", [1, 3, 16])
    @pytest.mark.parametrize("window", [1, 3, 4, 5, 8, 16, 100])
    def test_a_query_sees_its_window(self, window: int, page_size: int) -> None:
        layout = KVLayout(layers=1, kv_heads=2, head_dim=8, dtype="float32", page_size=page_size, window=window)
        with self.bench(layout, 4) as bench:
            seq, other = bench.cache.sequence(T(1, 60)), bench.cache.sequence(T(100, 150))
            bench.step({seq: 9})
            for _ in range(12):
                bench.step({seq: 1})
            bench.step({seq: 11, other: 3})
            bench.step({other: 17, seq: 1})

    @pytest.mark.parametrize(
        "extras",
        [
            Extras(scale=0.03),
            Extras(scale=1.0),
            Extras(softcap=1.5),
            Extras(sinks=(0.0, -30.0, 30.0, 2.0)),
            Extras(scale=0.7, softcap=5.0, sinks=(1.0, 1.0, -1.0, 0.5)),
        ],
        ids=str,
    )
    @pytest.mark.parametrize("window", [None, 6])
    def test_scale_softcap_and_sinks(self, extras: Extras, window: int | None) -> None:
        layout = KVLayout(layers=1, kv_heads=2, head_dim=8, dtype="float32", page_size=4, window=window)
        with self.bench(layout, 4, extras) as bench:
            seq = bench.cache.sequence(T(1, 30))
            for count in (11, 1, 1, 4):
                bench.step({seq: count})

    @pytest.mark.parametrize(
        "extras",
        [Extras(scale=0.7), Extras(softcap=1.5), Extras(sinks=(0.0, -30.0, 3.0, 2.0)), Extras(0.7, 5.0, (1.0,) * 4)],
        ids=str,
    )
    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    @pytest.mark.parametrize("window", [None, 6])
    def test_scale_softcap_and_sinks_when_many_decode_at_once(
        self, extras: Extras, dtype: str, window: int | None
    ) -> None:
        layout = KVLayout(layers=1, kv_heads=2, head_dim=8, dtype=dtype, page_size=4, window=window)
        with self.bench(layout, 4, extras, num_blocks=200) as bench:
            seqs = [bench.cache.sequence(T(1000 * at, 1000 * at + 25)) for at in range(12)]
            bench.step({seq: at + 1 for at, seq in enumerate(seqs)})
            for _ in range(3):
                bench.step(dict.fromkeys(seqs, 1))

    @pytest.mark.parametrize("dtype", QUANTIZED)
    @pytest.mark.parametrize(("kv_heads", "query_heads"), [(1, 1), (2, 4), (3, 9)], ids=str)
    def test_a_quantized_pool_is_read_as_it_was_written(self, dtype: str, kv_heads: int, query_heads: int) -> None:
        layout = KVLayout(layers=2, kv_heads=kv_heads, head_dim=24, dtype=dtype, page_size=4)
        for length in LENGTHS:
            with self.bench(layout, query_heads) as bench:
                seq = bench.cache.sequence(T(1, length + 8))
                bench.step({seq: length})
                bench.step({seq: 1})
                bench.step({seq: 7})

    @pytest.mark.parametrize("dtype", QUANTIZED)
    @pytest.mark.parametrize("extras", [Extras(), Extras(0.7, 5.0, (1.0,) * 4)], ids=str)
    @pytest.mark.parametrize("window", [None, 6])
    def test_a_quantized_pool_when_many_decode_at_once(self, dtype: str, extras: Extras, window: int | None) -> None:
        layout = KVLayout(layers=1, kv_heads=2, head_dim=8, dtype=dtype, page_size=4, window=window)
        with self.bench(layout, 4, extras, num_blocks=200) as bench:
            seqs = [bench.cache.sequence(T(1000 * at, 1000 * at + 25)) for at in range(8)]
            bench.step({seq: at + 1 for at, seq in enumerate(seqs)})
            for _ in range(3):
                bench.step(dict.fromkeys(seqs, 1))
            hit, inside = bench.cache.sequence(T(7000, 7020)), bench.cache.sequence([*T(6000, 6005), 1, 2])
            assert (hit.prefix_tokens, inside.prefix_tokens) == (8, 6)
            twin = seqs[5].fork()
            bench.step({hit: 3, inside: 1, twin: 2, seqs[5]: 1})

    @pytest.mark.parametrize("dtype", QUANTIZED)
    @pytest.mark.parametrize("q_dtype", [torch.float32, torch.bfloat16, torch.float16])
    def test_a_quantized_pool_takes_rows_and_queries_of_any_float_type(self, dtype: str, q_dtype: torch.dtype) -> None:
        layout = KVLayout(layers=1, kv_heads=1, head_dim=8, dtype=dtype, page_size=4)
        found = []
        for row_dtype in (torch.float32, torch.bfloat16, torch.float16):
            with open_cache(layout, num_blocks=4) as cache, cache.step({cache.sequence(T(1, 5)): 5}) as step:
                rows, other = torch.ones(5, 1, 8, dtype=row_dtype), torch.ones(5, 1, 8, dtype=torch.float64)
                plan = self.make().plan(step.batch, cache.arena)
                found.append(plan.run(0, torch.ones(5, 2, 8, dtype=q_dtype), rows, rows))
                for wrong in (other, other.to(torch.float16 if row_dtype != torch.float16 else torch.float32)):
                    with pytest.raises(ConfigError):
                        plan.run(0, torch.ones(5, 2, 8, dtype=q_dtype), rows, wrong)
        assert found[0].dtype == q_dtype
        assert torch.equal(found[0], torch.ones(5, 2, 8, dtype=q_dtype))
        assert torch.equal(found[0], found[1])
        assert torch.equal(found[0], found[2])

    @pytest.mark.parametrize("dtype", QUANTIZED)
    def test_what_lies_in_unused_slots_of_a_quantized_pool_changes_no_bit(self, dtype: str) -> None:
        layout = KVLayout(layers=2, kv_heads=2, head_dim=8, dtype=dtype, page_size=16)
        outputs = []
        for byte in (0, 0xFF, 0x7F):
            with self.bench(layout, 4, byte=byte) as bench:
                seqs = [bench.cache.sequence([100 * n + i for i in range(n + 4)]) for n in (1, 15, 16, 17, 40)]
                found = bench.step({seq: seq.num_tokens - 4 for seq in seqs})
                for _ in range(3):
                    found += bench.step(dict.fromkeys(seqs, 1))
                outputs.append(torch.cat([out.flatten() for out in found]).numpy().tobytes())
        assert outputs[0] == outputs[1] == outputs[2]

    @pytest.mark.parametrize("dtype", QUANTIZED)
    def test_nan_in_a_quantized_pool_shows_and_harms_nobody_else(self, dtype: str) -> None:
        layout = KVLayout(layers=1, kv_heads=1, head_dim=4, dtype=dtype, page_size=4)
        for bad in (float("nan"), float("inf")):
            with open_cache(layout, num_blocks=16) as cache:
                sick, well = cache.sequence(T(1, 7)), cache.sequence(T(50, 57))
                ones = torch.ones(14, 1, 4)
                ones[:6] = bad
                with cache.step({sick: 6, well: 8}) as step:
                    out = self.make().plan(step.batch, cache.arena).run(0, torch.ones(14, 1, 4), ones, ones)
                assert torch.isnan(out[:6]).all()
                assert (out[6:] == 1).all()

    def test_full_and_windowed_layers_of_different_head_shapes(self) -> None:
        specs = [LayerSpec(2, 8), LayerSpec(2, 8, window=5), LayerSpec(1, 16), LayerSpec(2, 8, window=5)]
        with self.bench(KVLayout.mixed(specs, dtype="float32", page_size=4), 4) as bench:
            seqs = [bench.cache.sequence(T(base, base + 40)) for base in (1, 100)]
            bench.step({seqs[0]: 7, seqs[1]: 18})
            for _ in range(8):
                bench.step(dict.fromkeys(seqs, 1))

    def test_a_batch_mixes_prefill_decode_hits_and_strangers(self) -> None:
        layout = KVLayout(layers=2, kv_heads=2, head_dim=8, dtype="float32", page_size=4)
        with self.bench(layout, 4) as bench:
            warm = bench.cache.sequence(T(1, 22))
            bench.step({warm: 21})
            hit, inside = bench.cache.sequence(T(1, 30)), bench.cache.sequence([*T(1, 14), 99, 98])
            cold = bench.cache.sequence(T(200, 212))
            assert (hit.prefix_tokens, inside.prefix_tokens, cold.prefix_tokens) == (20, 14, 0)
            bench.step({cold: 13, warm: 1, hit: 10, inside: 2})
            twin = hit.fork()
            hit.append([7, 8])
            twin.append([9, 10])
            bench.step({twin: 2, hit: 1})

    @pytest.mark.parametrize("count", [2, 9, 33])
    def test_decoding_many_sequences_of_all_lengths_at_once(self, count: int) -> None:
        layout = KVLayout(layers=1, kv_heads=1, head_dim=8, dtype="float32", page_size=4)
        with self.bench(layout, 2, num_blocks=400) as bench:
            seqs = [bench.cache.sequence(T(1000 * at, 1000 * at + at + 3)) for at in range(count)]
            bench.step({seq: at + 1 for at, seq in enumerate(seqs)})
            bench.step(dict.fromkeys(seqs, 1))
            bench.step(dict.fromkeys(seqs[::-1], 1))

    def test_what_lies_in_unused_slots_changes_no_bit(self) -> None:
        """O-06: zeros and NaN around the tokens give the same bits."""
        layout = KVLayout(layers=2, kv_heads=2, head_dim=8, dtype="float32", page_size=16)
        outputs = []
        for byte in (0, 0xFF, 0x7F):
            with self.bench(layout, 4, byte=byte) as bench:
                seqs = [bench.cache.sequence([100 * n + i for i in range(n + 4)]) for n in (1, 15, 16, 17, 40)]
                found = bench.step({seq: seq.num_tokens - 4 for seq in seqs})
                for _ in range(3):
                    found += bench.step(dict.fromkeys(seqs, 1))
                outputs.append(torch.cat([out.flatten() for out in found]).numpy().tobytes())
        assert outputs[0] == outputs[1] == outputs[2]

    def test_a_batch_mate_that_computes_nan_harms_nobody_else(self) -> None:
        layout = KVLayout(layers=1, kv_heads=1, head_dim=4, dtype="float32", page_size=4)
        with open_cache(layout, num_blocks=16) as cache:
            sick, well = cache.sequence(T(1, 7)), cache.sequence(T(50, 57))
            ones = torch.ones(14, 1, 4)
            ones[:6] = float("nan")
            with cache.step({sick: 6, well: 8}) as step:
                out = self.make().plan(step.batch, cache.arena).run(0, torch.ones(14, 1, 4), ones, ones)
            assert torch.isnan(out[:6]).all()
            assert (out[6:] == 1).all()

    def test_it_writes_the_new_rows_and_nothing_else(self) -> None:
        layout = KVLayout(layers=2, kv_heads=2, head_dim=4, dtype="bfloat16", page_size=4)
        with self.bench(layout, 2, num_blocks=8, byte=0x11) as bench:
            seq = bench.cache.sequence(T(1, 6))
            before = bench.cache.arena.blocks.copy()
            bench.step({seq: 6})
            blocks = seq.tables[0].mapped_blocks()
            others = np.setdiff1d(np.arange(8), blocks)
            assert np.array_equal(bench.cache.arena.blocks[others], before[others])
            for layer in range(2):
                view = layer_view(bench.cache.arena, layout, layer)
                k, v = bench.kv(layer, T(1, 6), 0, 6)
                for position in range(6):
                    held = view[int(blocks[position // 4]), :, :, position % 4]
                    assert torch.equal(held[:, 0], k[position])
                    assert torch.equal(held[:, 1], v[position])
                unused = view[int(blocks[1]), :, :, 2:].contiguous().view(torch.uint8)
                assert set(unused.flatten().tolist()) == {0x11}

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            ({"layer": 2}, "layer 2 is not one of the layout's 2"),
            ({"layer": -1}, "layer -1 is not one"),
            ({"k": torch.zeros(5, 2, 8)}, "k has shape"),
            ({"k": torch.zeros(6, 1, 8)}, "k has shape"),
            ({"v": torch.zeros(6, 2, 7)}, "v has shape"),
            ({"v": torch.zeros(6, 16)}, "v has shape"),
            ({"k": torch.zeros(6, 2, 8, dtype=torch.bfloat16)}, "the cache holds float32"),
            ({"v": torch.zeros(6, 2, 8, dtype=torch.float64)}, "the cache holds float32"),
            ({"q": torch.zeros(7, 4, 8)}, "q has shape"),
            ({"q": torch.zeros(6, 3, 8)}, "a multiple of 2 heads"),
            ({"q": torch.zeros(6, 0, 8)}, "a multiple of 2 heads"),
            ({"q": torch.zeros(6, 4, 9)}, "q has shape"),
            ({"q": torch.zeros(6, 32)}, "q has shape"),
        ],
    )
    def test_wrong_shapes_and_dtypes_are_refused_before_anything_is_written(
        self, change: dict[str, object], reason: str
    ) -> None:
        layout = KVLayout(layers=2, kv_heads=2, head_dim=8, dtype="float32", page_size=4)
        good = {"layer": 0, "q": torch.ones(6, 4, 8), "k": torch.ones(6, 2, 8), "v": torch.ones(6, 2, 8)}
        with open_cache(layout, num_blocks=4) as cache:
            seq = cache.sequence(T(1, 6))
            with cache.step({seq: 6}) as step:
                plan = self.make().plan(step.batch, cache.arena)
                before = cache.arena.blocks.tobytes()
                with pytest.raises(ConfigError, match=reason):
                    plan.run(**{**good, **change})
                assert cache.arena.blocks.tobytes() == before
                assert torch.equal(plan.run(**good), torch.ones(6, 4, 8))

    def test_sinks_of_a_wrong_shape_are_refused_before_anything_is_written(self) -> None:
        layout = KVLayout(layers=1, kv_heads=2, head_dim=8, dtype="float32", page_size=4)
        rows = (torch.ones(6, 4, 8), torch.ones(6, 2, 8), torch.ones(6, 2, 8))
        with open_cache(layout, num_blocks=4) as cache, cache.step({cache.sequence(T(1, 6)): 6}) as step:
            plan = self.make().plan(step.batch, cache.arena)
            before = cache.arena.blocks.tobytes()
            with pytest.raises(ConfigError, match="one per query head"):
                plan.run(0, *rows, LayerOptions(sinks=torch.zeros(2)))
            assert cache.arena.blocks.tobytes() == before
            assert plan.run(0, *rows, LayerOptions(sinks=torch.zeros(4))).isfinite().all()

    def test_queries_may_have_another_dtype_than_the_cache(self) -> None:
        layout = KVLayout(layers=1, kv_heads=1, head_dim=8, dtype="bfloat16", page_size=4)
        with open_cache(layout, num_blocks=4) as cache:
            seq = cache.sequence(T(1, 6))
            rows = torch.ones(5, 1, 8, dtype=torch.bfloat16)
            with cache.step({seq: 5}) as step:
                out = self.make().plan(step.batch, cache.arena).run(0, torch.ones(5, 2, 8), rows, rows)
            assert out.dtype == torch.float32
            assert torch.equal(out, torch.ones(5, 2, 8))
