"""What the books of one sequence of a million tokens take: its page table, and the columns of its non-resident pages.

The layout is tiny, since no byte of KV is attended to. An eighth of the pages has blocks, the others lie in the host
tier, and all that is there to find each of them is counted.
"""

from pathlib import Path

from kvpager.assemble import open_cache
from kvpager.bench.demand_scale import DemandScale
from kvpager.bench.random_pages import RandomPages
from kvpager.bench.report import Result
from kvpager.config.tiers import HostTier
from kvpager.memory.layout import KVLayout

PAGE_SIZE = 16
AT_MOST = 1 << 20
_LAYOUT = KVLayout(layers=1, kv_heads=1, head_dim=8, dtype="bfloat16", page_size=PAGE_SIZE)
_PAGES_AT_ONCE = 256


def page_table(scale: DemandScale, folder: Path) -> list[Result]:
    pages = scale.table_context // PAGE_SIZE
    with open_cache(_LAYOUT, num_blocks=pages // 8 + _PAGES_AT_ONCE, tiers=[HostTier(pages=pages)]) as cache:
        seq = cache.sequence(range(scale.table_context), resident_limit=pages // 8)
        RandomPages(_LAYOUT).extend(cache, seq, scale.table_context, min(_PAGES_AT_ONCE, pages // 16))
        [table] = seq.tables
        below = cache.paging.non_resident(seq, 0)
        assert below is not None
        checksums = below.checksums.nbytes  # of a model, as many for each layer
        return [
            Result("page_table_bytes_1m", float(table.nbytes), "bytes", at_most=AT_MOST),
            Result("page_table_bytes_1m/places", float(below.nbytes - checksums), "bytes"),
            Result("page_table_bytes_1m/checksums_a_layer", float(checksums), "bytes"),
        ]
