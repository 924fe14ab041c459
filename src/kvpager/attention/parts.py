"""Reading parts of pages that have no block: what was read is counted, and what can't be read is an error."""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from kvpager.attention.page_view import PageView
from kvpager.errors import ConfigError, PagesLost, TierError
from kvpager.tiers.staging import PartRequest, Staged, Window
from kvpager.types import TierKind

Read = Callable[[PartRequest], Staged]  # Window.fetch, or the next of a PartStream that was given the same requests


@dataclass(slots=True)
class StagedParts:
    """``addresses`` [n] per tier that was read. They hold until the next read, and as long as this does."""

    addresses: list[np.ndarray] = field(default_factory=list)
    kept: list[np.ndarray] = field(default_factory=list)  # copies of what the next read may have overwritten


def check_readable(view: PageView) -> None:
    """Raises ConfigError where non-resident pages of this layout can't be attended to."""
    if view.layout.is_quantized:
        raise ConfigError(
            f"pages without a block can't be read in a {view.layout.dtype} layout: keep its sequences resident, or "
            "choose float32, bfloat16 or float16"
        )


def window_of(view: PageView) -> Window:
    """Through which parts of its pages are read."""
    if view.window is None:
        raise ConfigError("pages of this step lie where they can't be read in place, and it has no staging window")
    return view.window


def read_parts(view: PageView, layer: int, by_tier: list[tuple[TierKind, np.ndarray]], read: Read) -> StagedParts:
    """``layer``'s parts of the pages that are given tier by tier. Raises PagesLost, after all of them were tried."""
    staged = StagedParts()
    lost: dict[int, TierError] = {}
    for tier, pages in by_tier:
        if staged.addresses:
            _keep(staged, view.part(layer)[1])
        found = read(view.request(layer, tier, pages))
        count_read(view, len(pages), found.num_bytes, found.stalled)
        lost.update((int(pages[at]), error) for at, error in found.errors.items())
        staged.addresses.append(found.addresses)
        if lost:
            staged.addresses.clear()
    if lost:
        raise PagesLost({(view.row, view.group): sorted(lost)}, next(iter(lost.values())))
    return staged


def count_read(view: PageView, parts: int, num_bytes: int, seconds: float = 0.0) -> None:
    if view.touched is not None:
        view.touched.parts[view.s] += parts
        view.touched.bytes[view.s] += num_bytes
        view.touched.seconds[view.s] += seconds


def bytes_at(addresses: np.ndarray, size: int) -> np.ndarray:
    """Copies: uint8 [n, size]."""
    rows = np.empty((len(addresses), size), np.uint8)
    for row, address in zip(rows, addresses.tolist(), strict=True):
        ctypes.memmove(row.ctypes.data, address, size)
    return rows


def _keep(staged: StagedParts, size: int) -> None:
    rows = bytes_at(staged.addresses[-1], size)
    staged.kept.append(rows)
    staged.addresses[-1] = rows.ctypes.data + size * np.arange(len(rows))
