"""In-request eviction by its plain definition, in fp64; and a sequence that a state gives pages of back."""

import math

import numpy as np
import torch

from kvpager import KVLayout
from kvpager.attention.backend import DEFAULT_OPTIONS
from kvpager.attention.page_view import PageView
from kvpager.attention.states import LayerState
from kvpager.memory.arena import HostArena
from kvpager.tiers.rows import TORCH_DTYPE, layer_view


class Context:
    """Random keys and queries of ``length`` tokens; page p lies in block p as long as it is ``present``."""

    def __init__(self, layout: KVLayout, length: int, query_heads: int, seed: int = 0) -> None:
        self.layout, self.length = layout, length
        self.arena = HostArena(layout.num_pages(length), layout.block_stride)
        group = layout.groups[0]
        self.keys = np.empty((layout.layers, length, group.kv_heads, group.head_dim))
        self.q = torch.empty(layout.layers, length, query_heads, group.head_dim)
        for layer in range(layout.layers):
            rng = np.random.default_rng([seed, layer])
            stored = torch.from_numpy(rng.standard_normal(self.keys.shape[1:]) * 1.5).to(TORCH_DTYPE[layout.dtype])
            at = torch.arange(length)
            layer_view(self.arena, layout, layer)[at // layout.page_size, :, 0, at % layout.page_size] = stored
            self.keys[layer] = stored.double().numpy()
            self.q[layer] = torch.from_numpy(rng.standard_normal(self.q.shape[1:]))
        self.given_back: set[int] = set()

    def attend(self, state: LayerState, start: int, stop: int) -> None:
        """All layers of a step that computes tokens ``start`` .. ``stop`` - 1."""
        for layer, place in enumerate(self.layout.places):
            blocks = np.arange(self.layout.num_pages(stop), dtype=np.int32)
            if self.layout.groups[place.group].window is None:
                blocks[list(self.given_back)] = -1
            view = PageView(self.layout, self.arena, 0, place.group, start, stop - start, blocks, None, None, None)
            q = self.q[layer, start:stop]
            assert state.attend(layer, view, q, DEFAULT_OPTIONS) is None
            state.attended(layer, view, q, DEFAULT_OPTIONS)

    def step(self, state: LayerState, start: int, stop: int) -> set[int]:
        """The whole step. Returns the pages that the state gives back after it; these are gone now."""
        self.attend(state, start, stop)
        found: set[int] = set()
        for number, group in enumerate(self.layout.groups):
            pages = state.pages_to_give_back(number, stop)
            assert pages.dtype == np.int64
            assert (np.diff(pages) > 0).all()
            assert group.window is None or not len(pages)
            found.update(pages.tolist())
        assert not found & self.given_back
        self.given_back |= found
        return found

    def present(self, length: int) -> list[int]:
        return [page for page in range(self.layout.num_pages(length)) if page not in self.given_back]

    def masses(self, layers: tuple[int, ...], position: int, length: int) -> np.ndarray:
        """[pages] attention mass of the query at ``position``, summed over layers and heads, pages given back apart."""
        size, pages = self.layout.page_size, self.layout.num_pages(length)
        masses = np.zeros(pages)
        heads, kv_heads = self.q.shape[2], self.keys.shape[2]
        for layer in layers:
            for head in range(heads):
                keys = self.keys[layer, : position + 1, head * kv_heads // heads]
                scores = keys @ self.q[layer, position, head].double().numpy() / math.sqrt(keys.shape[1])
                weights = np.exp(scores)
                for page in self.given_back:
                    weights[page * size : (page + 1) * size] = 0
                weights /= weights.sum()
                masses += np.bincount(np.arange(position + 1) // size, weights, minlength=pages)
        return masses


def protected(context: Context, length: int, sinks: int, recent: int) -> set[int]:
    """Pages that hold one of the first ``sinks`` or of the last ``recent`` tokens, by token; and the last page."""
    size = context.layout.page_size
    tokens = [*range(sinks), *range(max(0, length - recent + 1), length + 1), length - 1]
    return {token // size for token in tokens}


def least(masses: np.ndarray, pages: set[int], count: int) -> set[int]:
    return set(sorted(pages, key=lambda page: (masses[page], page))[: max(0, count)])
