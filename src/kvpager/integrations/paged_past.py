"""A transformers ``Cache`` whose keys and values are pages: one sequence per batch row, no tensors of its own.

A batch counts in columns, a sequence in positions; padding on the left is the difference:

    column     0         pads       columns        columns + T
    row i      | padding | in pages | new tokens   |
    position             0          columns - pads

``update`` hands K and V through untouched: the attention writes them into the pages of the open step. This file decides
which sequence is which row; it runs no forward pass (forward_pass.py does) and reads no mask (left_padding.py does).
"""

from array import array
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from transformers import Cache

from kvpager.cache.paged_cache import PagedCache
from kvpager.cache.prefix_match import first_visible_page
from kvpager.cache.sequence import Sequence, token_array
from kvpager.errors import ConfigError
from kvpager.prefix.hashing import Scope


class PagedPast(Cache):  # type: ignore[misc]
    """Made by ``open()`` of an attached model, for one batch of prompts. A context: leaving it gives the pages back.

    ``get_seq_length()`` is not 0 at first where the prompts begin with known content: those columns need no forward
    pass, and ``generate`` leaves them out by itself.
    """

    def __init__(
        self,
        pages: PagedCache,
        ids: np.ndarray,
        pads: np.ndarray,
        has_guessed_pads: bool,
        scope: Scope,
        on_close: Callable[["PagedPast"], None],
    ) -> None:
        """``ids`` [rows, columns] int32 with ``pads`` [rows] columns of padding on the left of each row."""
        super().__init__(layers=[])
        self.pages = pages
        self.scope = scope
        self.sequences: list[Sequence] = []
        self.columns = 0  # padding, or written to pages, in every row
        self.pads = pads
        self.is_closed = False
        self._has_guessed_pads = has_guessed_pads
        self._on_close = on_close
        self._prompt = ids
        self._is_untouched = True  # no forward pass yet: rows may be multiplied, guessed padding corrected
        self._map_known_columns()

    # -- opening ------------------------------------------------------------------------------------------------

    def _map_known_columns(self) -> None:
        self._check_tokens(self.pads)
        prompts = [token_array(row[pad:]) for row, pad in zip(self._prompt, self.pads.tolist(), strict=True)]
        self.columns = self._known_columns(prompts)
        for prompt, pad in zip(prompts, self.pads.tolist(), strict=True):
            seq = self.pages.sequence(prompt, scope=self.scope, max_prefix=max(0, self.columns - pad))
            self.sequences.append(seq)
            seq.truncate(seq.length)  # the other token ids are added by the forward pass that computes them

    def _check_tokens(self, pads: np.ndarray) -> None:
        empty = np.flatnonzero(pads >= self._prompt.shape[1])
        if len(empty):
            raise ConfigError(f"row {empty[0]} is all padding; give every row at least one token")

    def _known_columns(self, prompts: list["array[int]"]) -> int:
        """The largest column up to which every row is padding or known content."""
        columns = self._prompt.shape[1] - 1
        while columns:
            found = columns
            for prompt, pad in zip(prompts, self.pads.tolist(), strict=True):
                if columns > pad:
                    found = min(found, pad + self.pages.lookup(prompt, self.scope, columns - pad).num_tokens)
            if found == columns:
                break
            columns = found  # windows: where a long match is possible, a shorter one need not be, so look again
        return columns

    # -- what a forward pass does with it -----------------------------------------------------------------------

    @property
    def num_rows(self) -> int:
        return len(self.sequences)

    def positions(self, count: int) -> np.ndarray:
        """[rows, count] position of each of the next ``count`` columns in its sequence; below 0 where it is padding."""
        return np.arange(self.columns, self.columns + count)[None, :] - self.pads[:, None]

    def fit_rows(self, rows: int) -> None:
        """Multiplies the rows by forking (beams, several answers per prompt); only before the first pass."""
        self.check_open()
        if rows == self.num_rows:
            return
        if not self._is_untouched or rows % self.num_rows:
            raise ConfigError(
                f"the batch has {rows} rows, but the pages were opened for {self.num_rows}; open them for this batch"
            )
        self.batch_repeat_interleave(rows // self.num_rows)

    def merge_rows(self, rows: int) -> None:
        """Takes ``fit_rows`` back, where the pass it was for did not come about."""
        if rows != self.num_rows:
            self._select(list(range(0, self.num_rows, self.num_rows // rows)))

    def correct_pads(self, pads: np.ndarray) -> None:
        """Takes the padding that the forward pass shows; it must be what ``open`` was told, unless that was a guess."""
        if np.array_equal(pads, self.pads):
            return
        row = int(np.argmax(pads != self.pads))
        if not (self._has_guessed_pads and self._is_untouched and self.columns == 0):
            raise ConfigError(
                f"attention_mask shows {pads[row]} columns of padding in row {row}, but the pages were opened with "
                f"{self.pads[row]}; give the same attention_mask to open() and to the model"
            )
        self._check_tokens(pads)
        self.pads = pads
        self.start_over()

    def begins_again(self, ids: np.ndarray, position_ids: np.ndarray | None) -> bool:
        """Whether ``ids`` [rows, count] begin with the prompt's first column, although that needs no pass any more.

        So it is where they hold the whole prompt, or where ``position_ids`` [rows, count] say so (a chunk of it).
        """
        if not self._is_untouched or self.columns == 0:
            return False
        shown = self._prompt[:, : ids.shape[1]]
        positions = np.arange(shown.shape[1])[None, :] - self.pads[:, None]
        is_token = positions >= 0
        is_whole = shown.shape[1] == self._prompt.shape[1]
        if not is_whole and (position_ids is None or not is_token.any() or (position_ids != positions)[is_token].any()):
            return False
        return bool((ids[:, : shown.shape[1]] == shown)[is_token].all())

    def start_over(self) -> None:
        """Gives the known columns up, to compute the prompt from its first column on."""
        self._give_back()
        self.columns = 0
        for row, pad in zip(self._prompt, self.pads.tolist(), strict=True):
            seq = self.pages.sequence(token_array(row[pad:]), scope=self.scope, max_prefix=0)
            self.sequences.append(seq)
            seq.truncate(0)

    def check_prompt(self, ids: np.ndarray) -> None:
        """Raises ConfigError unless the next columns ``ids`` [rows, count] are those of the prompt that was opened."""
        expected = self._prompt[:, self.columns : self.columns + ids.shape[1]]
        is_token = self.positions(expected.shape[1]) >= 0
        wrong = (expected != ids[:, : expected.shape[1]]) & is_token
        if wrong.any():
            row, column = np.argwhere(wrong)[0].tolist()
            raise ConfigError(
                f"column {self.columns + column} of row {row} is token {ids[row, column]}, but the pages were opened "
                f"for a prompt with {expected[row, column]} there; open them for this prompt"
            )

    def advance(self, count: int) -> None:
        """The next ``count`` columns are written."""
        self.columns += count
        self._is_untouched = False

    # -- what transformers asks and does ------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.pages.layout.layers

    def __repr__(self) -> str:
        state = "closed" if self.is_closed else f"{self.num_rows} rows, {self.columns} columns"
        return f"<PagedPast {state}>"

    def update(self, key_states: Tensor, value_states: Tensor, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        self.check_open()
        return self.columns

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        return self.columns + query_length, 0

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return -1  # in transformers' words: no maximum

    @property
    def batch_size(self) -> int:
        return self.num_rows

    @property
    def is_sliding(self) -> list[bool]:
        layout = self.pages.layout
        return [layout.groups[place.group].window is not None for place in layout.places]

    @property
    def is_linear(self) -> list[bool]:
        return [False] * len(self)

    @property
    def is_dummy(self) -> list[bool]:
        return [False] * len(self)

    @property
    def is_compileable(self) -> bool:
        return False

    @property
    def is_initialized(self) -> bool:
        return True

    @property
    def is_croppable(self) -> bool:
        return True

    def activate_past_recording(self) -> None:
        """Nothing to do: ``rewind`` of the pages says how far behind a window they can be taken back."""

    def crop(self, tokens_to_remove: int) -> None:
        """Takes ``-tokens_to_remove`` columns back from every row; the argument is negative or 0, as in transformers.

        Raises ConfigError, with nothing changed, where a window has moved on by more than the ``rewind`` of the pages.
        """
        self.check_open()
        columns = self.columns + tokens_to_remove
        if tokens_to_remove > 0 or columns < 0:
            raise ConfigError(
                f"crop({tokens_to_remove}): give minus the number of columns to take back, at most {self.columns}"
            )
        lengths = np.maximum(columns - self.pads, 0).tolist()
        for seq, length in zip(self.sequences, lengths, strict=True):
            self._check_can_truncate(seq, length)
        for seq, length in zip(self.sequences, lengths, strict=True):
            seq.truncate(length)
        self.columns = columns
        self._prompt = self._prompt[:, :columns] if tokens_to_remove else self._prompt  # other tokens may follow now

    def _check_can_truncate(self, seq: Sequence, length: int) -> None:
        layout = self.pages.layout
        for number, group in enumerate(layout.groups):
            first_kept = int(self.pages.rows.first_page[number, seq.row])
            if first_visible_page(length, group.window, layout.page_size) < first_kept:
                raise ConfigError(
                    f"can't take back {seq.length - length} tokens: the window of {group.window} tokens has moved on "
                    "and its pages were given back; attach the model with a larger rewind"
                )

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Row i continues what row ``beam_idx[i]`` is now: rows chosen twice are forked, rows not chosen are freed."""
        self._select([int(row) for row in beam_idx.tolist()])

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keeps the rows ``indices``: numbers, or a mask."""
        rows = indices.nonzero().flatten() if indices.dtype == torch.bool else indices
        self._select([int(row) for row in rows.tolist()])

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Every row becomes ``repeats`` rows, side by side."""
        self._select([row for row in range(self.num_rows) for _ in range(repeats)])

    def _select(self, order: list[int]) -> None:
        self.check_open()
        if not order or min(order) < 0 or max(order) >= self.num_rows:
            raise ConfigError(f"rows {order} are not all among the {self.num_rows} rows of this batch")
        taken: set[int] = set()
        chosen = []
        for row in order:
            seq = self.sequences[row]
            chosen.append(seq.fork() if row in taken else seq)
            taken.add(row)
        left_over = [seq for row, seq in enumerate(self.sequences) if row not in taken]
        self.sequences = chosen
        self.pads, self._prompt = self.pads[order], self._prompt[order]
        self.pages.free(left_over)

    def reset(self) -> None:
        raise ConfigError("a paged past belongs to its prompts; close it and open another one")

    # -- order --------------------------------------------------------------------------------------------------

    def check_open(self) -> None:
        if self.is_closed:
            raise ConfigError("this past was closed and its pages given back; open another one")

    def close(self) -> None:
        """Gives the pages back; full ones stay findable for later prompts. Closing twice does nothing."""
        if self.is_closed:
            return
        self._on_close(self)
        self._give_back()
        self.is_closed = True

    def _give_back(self) -> None:
        sequences, self.sequences = self.sequences, []
        self.pages.free(sequences)

    def __enter__(self) -> "PagedPast":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
