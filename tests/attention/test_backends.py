"""Each backend through the contract of all."""

import pytest
import torch

from kvpager import KVLayout, native, open_cache
from kvpager.attention import AttentionBackend, reference
from kvpager.attention.cpu import CpuBackend
from kvpager.attention.reference import ReferenceBackend
from kvpager.attention.torch_batched import TorchBackend
from tests.attention.bench import Bench
from tests.contracts.attention_backend import AttentionBackendContract
from tests.stamp import T


class TestReference(AttentionBackendContract):
    name = "reference"

    def make(self) -> AttentionBackend:
        return ReferenceBackend()

    def test_a_long_prefill_is_cut_into_rows_of_queries(self, monkeypatch) -> None:  # type: ignore[no-untyped-def]
        monkeypatch.setattr(reference, "_MAX_SCORES", 100)
        layout = KVLayout(layers=1, kv_heads=2, head_dim=8, dtype="float32", page_size=4)
        for window in (None, 5):
            layout = KVLayout(layers=1, kv_heads=2, head_dim=8, dtype="float32", page_size=4, window=window)
            with self.bench(layout, 4) as bench:
                seq = bench.cache.sequence(T(1, 40))
                bench.step({seq: 23})
                bench.step({seq: 17})


class TestTorch(AttentionBackendContract):
    name = "torch"

    def make(self) -> AttentionBackend:
        return TorchBackend()

    def test_it_agrees_with_the_reference_on_a_batch_of_every_length(self) -> None:
        layout = KVLayout(layers=1, kv_heads=2, head_dim=16, dtype="float32", page_size=4, window=9)
        outputs = []
        for backend in (ReferenceBackend(), TorchBackend()):
            with open_cache(layout, num_blocks=300) as cache:
                bench = Bench(cache, backend, 4)
                seqs = [cache.sequence(T(1000 * at, 1000 * at + at + 1)) for at in range(40)]
                bench.step({seq: at + 1 for at, seq in enumerate(seqs)})
                outputs.append(bench.step(dict.fromkeys(seqs, 1))[0])
        torch.testing.assert_close(outputs[0], outputs[1], rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(native.module() is None, reason=native.why_not())
class TestCpu(AttentionBackendContract):
    name = "cpu"

    def make(self) -> AttentionBackend:
        return CpuBackend()
