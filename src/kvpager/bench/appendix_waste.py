"""Room in blocks that no token fills, at true lengths: the real bookkeeping over the requests of Azure's conversation
trace, without a model, since what a page holds makes no difference to it.

32 requests run at once, one token a step each; as one ends, the next one starts. The last page of a request is half
full in the mean, so the share of waste is about half a page over a request's length.
"""

from kvpager.assemble import open_cache
from kvpager.bench.report import Result
from kvpager.bench.workload_lengths import azure_lengths
from kvpager.cache.sequence import Sequence
from kvpager.config.options import DEFAULT_PAGE_SIZE
from kvpager.memory.layout import KVLayout

AT_ONCE = 32
_PAGE_SIZES = (16, 32, 64)
_LONGEST = 14_089  # tokens of the trace's longest request
_CONTEXTS = (4096, 16384, 65536)  # that it is made to fill, as in appendix C
_AT_MOST = 0.02


def measure(quick: bool) -> list[Result]:
    """The trace as it was recorded, and made longer or shorter for the contexts of the appendix."""
    lengths = azure_lengths()[: AT_ONCE * 2 if quick else None]
    found = []
    for page_size in _PAGE_SIZES:
        is_default = page_size == DEFAULT_PAGE_SIZE
        name = "kv_waste_share" if is_default else f"kv_waste_share/page_size_{page_size}"
        share = waste_share(lengths, page_size)
        found.append(Result(name, share, "share", at_most=_AT_MOST if is_default else None))
    for context in _CONTEXTS:
        part = context / _LONGEST
        scaled = [(max(1, int(prompt * part)), max(1, int(output * part))) for prompt, output in lengths]
        stride = context // 4096 | 1  # tokens a step: odd, so that every place in a page comes up
        found.append(
            Result(f"kv_waste_share/context_{context}", waste_share(scaled, DEFAULT_PAGE_SIZE, stride), "share")
        )
    return found


def waste_share(lengths: list[tuple[int, int]], page_size: int, stride: int = 1) -> float:
    """Empty slots of mapped blocks over all of their slots, summed over the steps of all requests."""
    layout = KVLayout(layers=1, kv_heads=1, head_dim=8, dtype="bfloat16", page_size=page_size)
    longest = max(prompt + output for prompt, output in lengths)
    waiting, running = list(lengths), dict[Sequence, int]()
    empty = slots = 0
    with open_cache(layout, num_blocks=AT_ONCE * layout.num_pages(longest), prefix_cache=False) as cache:
        while waiting or running:
            new = {}
            while waiting and len(running) < AT_ONCE:
                prompt, output = waiting.pop(0)
                seq = cache.sequence([1] * (prompt + output - 1))
                running[seq] = new[seq] = prompt
            for seq in running.keys() - new.keys():
                new[seq] = min(stride, seq.num_tokens - seq.length)
            new = {seq: count for seq, count in new.items() if count}
            if new:
                with cache.step(new):
                    pass
            used = cache.pool.counts().used * page_size
            slots += used
            empty += used - sum(seq.length for seq in running)
            for seq in [seq for seq in running if seq.length == seq.num_tokens]:
                del running[seq]
                seq.free()
    return empty / slots
