"""One forward pass of a Hugging Face model over a packed batch. Knows no requests and no scheduler.

All new tokens of a step lie in one row, without padding; positions restart with each sequence, and attention keeps
them apart because it goes through the pages. Logits are computed only where a token will be chosen. Two passes may be
under way at once, one of them in the second lane, as long as only one of them computes (engine/slow_lane.py).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from kvpager.attention.backend import AttentionBackend
from kvpager.cache.step import StepBatch
from kvpager.errors import ConfigError
from kvpager.integrations.attention_function import NAME, PackedCall, attending, paged_attention
from kvpager.integrations.fingerprint import fingerprint_of
from kvpager.integrations.fused_layers import FusedDecoder, fused
from kvpager.integrations.layer_buffers import Buffers
from kvpager.memory.arena import Arena
from kvpager.memory.layout import KVLayout

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class ModelRunner:
    """Runs ``model`` with ``backend`` for attention, while ``running()``.

    ``fused`` is the model's layers with native kernels between the matrix products, or why its own modules run: they
    can't be fused, are not to be (``fuse``), or nothing runs yet. ``arithmetic``: see ``fingerprint_of``.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        backend: AttentionBackend,
        layout: KVLayout,
        arena: Arena,
        fuse: bool,
        arithmetic: str = "",
    ) -> None:
        self.model = model
        self._arithmetic = arithmetic
        self.backend = backend
        self.fused: FusedDecoder | str = "not running"
        self._fuse = fuse
        self._fusion = ExitStack()
        self._layout, self._arena = layout, arena
        self._device = model.device
        self._buffers, self._slow_buffers = Buffers(), Buffers()

    @contextmanager
    def running(self) -> Iterator[None]:
        """The model is ours inside, and in eval mode: its attention and its mode are restored on exit.

        Raises ConfigError if it is somebody else's already.
        """
        if self.model.config._attn_implementation == NAME:
            raise ConfigError("this model is in use by another engine or attach(); close that first, or load it again")
        was_training = self.model.training
        self.model.eval()
        try:
            with paged_attention(self.model), self._fusion:
                self._fuse_layers()
                yield
        finally:
            self.fused = "not running"
            self.model.train(was_training)

    def _fuse_layers(self) -> None:
        self._fusion.close()
        self._buffers, self._slow_buffers = Buffers(), Buffers()
        self.fused = self._fusion.enter_context(fused(self.model, self._layout)) if self._fuse else "switched off"

    def forward(self, batch: StepBatch, tokens: array[int], sample_at: np.ndarray) -> Tensor:
        """Logits [len(sample_at), vocab] of the new ``tokens`` [T] of a step, at the packed indices ``sample_at``."""
        return self._forward(batch, tokens, sample_at, self._buffers, None)

    def slow_forward(
        self, batch: StepBatch, tokens: array[int], sample_at: np.ndarray, breathe: Callable[[], None], threads: int
    ) -> Tensor:
        """The same in the thread of the second lane, on as many ``threads`` as the engine's own: a matrix product's
        last bits may hang on that."""
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        return self._forward(batch, tokens, sample_at, self._slow_buffers, breathe)

    @torch.inference_mode()
    def _forward(
        self,
        batch: StepBatch,
        tokens: array[int],
        sample_at: np.ndarray,
        buffers: Buffers,
        breathe: Callable[[], None] | None,
    ) -> Tensor:
        ids = torch.frombuffer(tokens, dtype=torch.int32).to(self._device, torch.int64)
        positions = torch.from_numpy(batch.positions()).to(self._device)
        keep = torch.from_numpy(np.ascontiguousarray(sample_at, np.int64)).to(self._device)
        plan = self.backend.plan(batch, self._arena)
        if isinstance(self.fused, FusedDecoder) and self.fused.is_current():
            return self.fused.forward(ids, positions, plan, keep, buffers, breathe)
        with attending(PackedCall(batch.layout, plan)):
            output = self.model(input_ids=ids[None], position_ids=positions[None], use_cache=False, logits_to_keep=keep)
        logits: Tensor = output.logits[0]
        return logits

    def weights_changed(self) -> None:
        """Weights or modules were replaced: the layers are fused again. REQUIRES: ``running()``."""
        self._fuse_layers()

    def fingerprint(self) -> bytes:
        return fingerprint_of(self.model, self._arithmetic)
