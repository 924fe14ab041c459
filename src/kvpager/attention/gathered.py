"""Copies of a sequence's pages as values, wherever they lie: the slow, obvious way, on any torch device."""

import numpy as np
import torch
from torch import Tensor

from kvpager.attention.page_view import PageView
from kvpager.attention.parts import bytes_at, check_readable, count_read, read_parts, window_of
from kvpager.tiers.rows import TORCH_DTYPE, LayerRows

_SLOTS_AT_ONCE = 2048  # whose parts are read by one request


def gather_pages(view: PageView, layer: int, pages: np.ndarray, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """K and V of the tokens in ``pages`` (ascending page numbers): [kv_heads, keys, head_dim] each, and the positions
    [keys]. Slots without a token are left out. Raises PagesLost."""
    rows = LayerRows.of(view.arena, view.layout, layer)
    device = rows.stored.device
    _, heads, _, page_size, dim = rows.stored.shape
    found = torch.empty((len(pages), heads, 2, page_size, dim), dtype=dtype, device=device)
    blocks = view.blocks[pages]
    resident = np.flatnonzero(blocks >= 0)
    found[_index(resident, device)] = rows.pages(_index(blocks[resident], device), dtype)
    elsewhere = np.flatnonzero(blocks < 0)
    if len(elsewhere):
        check_readable(view)
    at_once = max(1, _SLOTS_AT_ONCE // page_size)
    for first in range(0, len(elsewhere), at_once):
        entries = elsewhere[first : first + at_once]
        for those, parts in _read(view, layer, pages[entries]):
            values = torch.from_numpy(parts).view(TORCH_DTYPE[view.layout.dtype]).view(-1, heads, 2, page_size, dim)
            found[_index(np.searchsorted(pages, those), device)] = values.to(device).to(dtype)
        if view.window is not None:
            view.window.pace.breathe()
    positions = (pages[:, None] * page_size + np.arange(page_size)).reshape(-1)
    is_token = _index(np.flatnonzero(positions < view.num_tokens), device)
    both = found.permute(2, 1, 0, 3, 4).reshape(2, heads, -1, dim)[:, :, is_token]
    return both[0], both[1], _index(positions, device)[is_token]


def _read(view: PageView, layer: int, pages: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """The parts of pages without a block: (pages, uint8 [n, part bytes]) per place that has some."""
    size = view.part(layer)[1]
    addresses = view.addresses(layer, pages)
    in_place = addresses != 0
    found = []
    if in_place.any():
        found.append((pages[in_place], bytes_at(addresses[in_place], size)))
        count_read(view, int(in_place.sum()), int(in_place.sum()) * size)
    by_tier = view.to_read(pages)
    staged = read_parts(view, layer, by_tier, lambda request: window_of(view).fetch(request))
    for (_, those), where in zip(by_tier, staged.addresses, strict=True):
        found.append((those, bytes_at(where, size)))
    return found


def _index(ids: np.ndarray, device: torch.device) -> Tensor:
    return torch.as_tensor(np.ascontiguousarray(ids, np.int64), device=device)
