"""Fewer bytes a page below the device, at the price of precision: what the tiers need to know of it.

    device block [block_stride] --encode--> page [page_bytes] ..tiers..> page --decode--> device block

A tier that is given a codec stores encoded pages: checksums, seals and keys are of those. The encoded page is a block
of the same layout in the codec's dtype (memory/layout.py), so it can be read by whoever reads quantized blocks. What
comes back up is not what went down, but close to it, so a lossy codec is used only where a user asks for it.

Imports no tensor library: the codecs are in tiers/quantized_pages.py.
"""

from typing import Protocol

import numpy as np

from kvpager.errors import ConfigError
from kvpager.memory.layout import QUANTIZED, KVLayout, LayerSpec


class PageCodec(Protocol):
    """Calls come from worker threads, several at once; they change nothing but what they are given to fill.

    ``layout``: of encoded pages; its ``describe()`` belongs into the identity of what a tier keeps. ``group``: the
    layer group that the block belongs to.
    """

    name: str
    layout: KVLayout
    page_bytes: int
    is_lossy: bool

    def encode(self, block: np.ndarray, out: np.ndarray, group: int = 0) -> None:
        """Fills all of ``out`` (uint8 [page_bytes]) from ``block`` (uint8 [block_stride]).

        Raises TierError if the block holds what the codec can't keep; it stays where it is then.
        """
        ...

    def decode(self, page: np.ndarray, into_block: np.ndarray, group: int = 0) -> None:
        """Fills all of ``into_block`` from ``page``: the same bytes each time, and finite where values are numbers.

        Raises WrongContent if ``encode`` can't have made the page.
        """
        ...


def encoded_layout(layout: KVLayout, dtype: str) -> KVLayout:
    """``layout`` with the elements of ``dtype``. Raises ConfigError where pages can't be kept so."""
    if dtype not in QUANTIZED:
        raise ConfigError(f"pages below the device are kept as {' or '.join(QUANTIZED)}, not as {dtype!r}")
    if layout.is_quantized:
        raise ConfigError(
            f"the cache holds {layout.dtype} already: leave out the precision below the device, "
            f"or choose a float KV dtype"
        )
    specs = [LayerSpec(0, 0)] * layout.layers
    for group in layout.groups:
        for layer in group.layers:
            specs[layer] = LayerSpec(group.kv_heads, group.head_dim, group.window)
    return KVLayout.mixed(specs, dtype=dtype, page_size=layout.page_size)
