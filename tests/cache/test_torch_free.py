"""The bookkeeping works where torch can't be imported."""

import subprocess
import sys
import textwrap

BLOCK_TORCH = """
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec

class NoTorch(MetaPathFinder, Loader):  # asking where torch lies is allowed, importing it is not
    def find_spec(self, name, path=None, target=None):
        return ModuleSpec(name, self) if name.split(".")[0] in ("torch", "transformers") else None

    def create_module(self, spec):
        raise ImportError(f"{spec.name} must not be imported by the bookkeeping")

    def exec_module(self, module):
        raise NotImplementedError

sys.meta_path.insert(0, NoTorch())
"""

WORK = """
from kvpager import KVLayout, LayerSpec, OutOfBlocks, open_cache

full = KVLayout(2, 2, 8, page_size=4)
mixed = KVLayout.mixed([LayerSpec(1, 8), LayerSpec(1, 8, window=8)], page_size=4)
for layout in (full, mixed):
    with open_cache(layout, num_blocks=16, max_capacity=32 * layout.block_stride, rewind=9) as cache:
        seq = cache.sequence(range(1, 15))
        with cache.step({seq: 14}):
            pass
        twin = seq.fork()
        for each in (seq, twin):
            each.append(9)
        with cache.step({seq: 1, twin: 1}):
            pass
        twin.truncate(6)
        seq.free()
        assert cache.sequence(range(1, 15)).prefix_tokens >= 12
        try:
            cache.step({cache.sequence(range(100, 400)): 300})
        except OutOfBlocks:
            cache.resize(32)
        cache.check()
        cache.clear_prefix()
        print(cache.statistics().blocks.total)
assert not {"torch", "transformers"} & set(sys.modules)
"""


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BLOCK_TORCH + textwrap.dedent(code)], capture_output=True, text=True, timeout=120
    )


def test_open_step_fork_and_free_work_without_torch() -> None:
    done = run(WORK)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["32", "32"]


def test_the_blocker_blocks() -> None:
    """The control: rows by hand do need torch, and the blocker says so."""
    done = run(
        """
        from kvpager import KVLayout, open_cache
        cache = open_cache(KVLayout(1, 1, 8), num_blocks=2)
        cache.sequence().write(0, None, None)
        """
    )
    assert done.returncode == 1
    assert "torch must not be imported by the bookkeeping" in done.stderr
