"""One forward pass of an attached model: reads its arguments, opens a step, packs rows into it, and closes it.

    rows [batch, heads, columns, dim]                     packed [tokens, heads, dim]
    | pad pad  a0  a1 |            columns that are
    | b0  b1   b2  b3 |            padding are left out   | a0 a1 | b0 b1 b2 b3 |     and come back as zeros

An argument it does not know may change what a token's K and V are, so it is refused rather than ignored.
"""

import inspect
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from kvpager.attention.backend import AttentionBackend, LayerOptions, Plan
from kvpager.cache.step import Step
from kvpager.errors import ConfigError
from kvpager.integrations.attention_function import attending
from kvpager.integrations.left_padding import read_pads, read_tokens
from kvpager.integrations.paged_past import PagedPast
from kvpager.memory.layout import KVLayout

PAST_NAMES = ("cache", "past_key_values")  # what transformers calls it now, and what it was called before
_HARMLESS = {"labels", "logits_to_keep", "output_hidden_states", "output_router_logits", "return_dict"}
_ASK_FOR_ALL = {"labels", "output_hidden_states"}  # arguments that need an output of every column
_READ_HERE = {"input_ids", "attention_mask", "position_ids", "use_cache", "output_attentions", *PAST_NAMES}


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What a model has embeddings for: token ids below ``vocabulary``, positions below ``positions`` (None: all)."""

    vocabulary: int
    positions: int | None


class _NoGradient(torch.autograd.Function):
    """Hands attention outputs through, and refuses to hand gradients back: pages keep values only."""

    @staticmethod
    def forward(ctx: Any, out: Tensor, *_: Tensor) -> Tensor:
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise ConfigError("pages keep no gradients; detach the model to train it, or call it under torch.no_grad()")


class PaddedCall:
    """The attention of one pass over rows with padding on the left."""

    def __init__(self, layout: KVLayout, plan: Plan, is_token: np.ndarray, device: torch.device) -> None:
        """``is_token`` [batch, columns]: the columns that are not padding."""
        self.layout = layout
        self.layers_run: set[int] = set()
        self._plan = plan
        self._flat: Tensor | None = None  # [tokens] where the packed tokens lie among batch x columns
        if not is_token.all():
            self._flat = torch.as_tensor(np.flatnonzero(is_token), device=device)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, options: LayerOptions) -> Tensor:
        with torch.no_grad():
            packed = self._plan.run(layer, self._pack(query), self._pack(key), self._pack(value), options)
            out = self._unpack(packed, query)
        self.layers_run.add(layer)
        if query.requires_grad or key.requires_grad or value.requires_grad:
            out = _NoGradient.apply(out, query, key, value)  # type: ignore[no-untyped-call]
        return out

    def _unpack(self, packed: Tensor, query: Tensor) -> Tensor:
        """[tokens, heads, dim] to [batch, columns, heads, dim]."""
        batch, heads, columns, _ = query.shape
        if self._flat is None:
            return packed.view(batch, columns, heads, -1)
        out = packed.new_zeros(batch * columns, heads, packed.shape[-1])
        out[self._flat] = packed
        return out.view(batch, columns, heads, -1)

    def _pack(self, rows: Tensor) -> Tensor:
        """[batch, heads, columns, dim] to [tokens, heads, dim]."""
        flat = rows.transpose(1, 2).flatten(0, 1)
        return flat if self._flat is None else flat[self._flat]


class ForwardPass:
    """An open step around one call of the model. ``arguments`` are what the model is to be called with."""

    def __init__(
        self, backend: AttentionBackend, past: PagedPast, arguments: dict[str, Any], limits: ModelLimits
    ) -> None:
        """Checks the arguments and opens the step. Raises ConfigError or OutOfBlocks with nothing changed."""
        ids = read_tokens(arguments.get("input_ids"), limits.vocabulary)
        rows_before = past.num_rows
        past.fit_rows(len(ids))
        self._past = past
        try:
            if past.begins_again(ids, _read_positions(arguments.get("position_ids"), ids)):
                ids, arguments = _leave_out_known(past, ids, arguments)
            self._columns = ids.shape[1]
            past.check_prompt(ids)
            past.correct_pads(_pads_of(past, arguments.get("attention_mask"), self._columns))
            positions = past.positions(self._columns)
            _check_positions(_read_positions(arguments.get("position_ids"), ids), positions, limits)
            self._step = _open_step(past, ids, positions >= 0)
        except BaseException:
            past.merge_rows(rows_before)
            raise
        device = arguments["input_ids"].device
        self.arguments = arguments | {"position_ids": torch.as_tensor(positions.clip(0), device=device)}
        self._contexts = ExitStack()
        try:
            self._enter(backend, positions >= 0, device)
        except BaseException:
            self.close(succeeded=False)
            raise

    def _enter(self, backend: AttentionBackend, is_token: np.ndarray, device: torch.device) -> None:
        plan = backend.plan(self._step.batch, self._past.pages.arena)
        self._call = PaddedCall(self._past.pages.layout, plan, is_token, device)
        self._contexts.enter_context(attending(self._call))

    def close(self, succeeded: bool) -> None:
        """Ends the step: its tokens count if the pass succeeded, else nothing of it is kept.

        Raises ConfigError where the pass left layers out: the pages of those layers would hold nothing.
        """
        self._contexts.close()
        left_out = self._past.pages.layout.layers - len(self._call.layers_run) if succeeded else 0
        if succeeded and not left_out:
            self._step.__exit__(None, None, None)
            self._past.advance(self._columns)
            return
        self._step.__exit__(RuntimeError, None, None)
        _forget_token_ids(self._past)
        if left_out:
            raise ConfigError(f"the forward pass left out {left_out} layers (early exit), so its pages were not kept")


def _leave_out_known(past: PagedPast, ids: np.ndarray, arguments: dict[str, Any]) -> tuple[np.ndarray, dict[str, Any]]:
    """The columns that are not in pages yet, where only their outputs are asked for; else all are computed again."""
    known, outputs = past.columns, arguments.get("logits_to_keep")
    asks_for_all = bool(_ASK_FOR_ALL & {name for name, value in arguments.items() if value is not False})
    if asks_for_all or not isinstance(outputs, int) or not 0 < outputs <= ids.shape[1] - known:
        past.start_over()
        return ids, arguments
    shorter = {name: arguments[name][:, known:] for name in ("input_ids", "position_ids") if name in arguments}
    return ids[:, known:], arguments | shorter


def _pads_of(past: PagedPast, attention_mask: object, columns: int) -> np.ndarray:
    total = past.columns + columns
    pads = read_pads(attention_mask, past.num_rows, total)
    # A row that is all padding so far (a chunk of a longer prompt) has at least so many, as open() was told.
    return np.where((pads == total) & (past.pads > total), past.pads, pads)


def _read_positions(position_ids: object, ids: np.ndarray) -> np.ndarray | None:
    """[rows, columns] like ``ids``; None where none are given."""
    if position_ids is None:
        return None
    rows, columns = ids.shape
    shape = tuple(position_ids.shape) if isinstance(position_ids, Tensor) else ()
    if not isinstance(position_ids, Tensor) or shape not in ((rows, columns), (1, columns)):
        raise ConfigError(f"position_ids must be a tensor [rows, columns] {ids.shape}, not {shape}")
    return np.broadcast_to(position_ids.detach().cpu().numpy(), ids.shape)


def _check_positions(given: np.ndarray | None, positions: np.ndarray, limits: ModelLimits) -> None:
    if limits.positions is not None and positions.max() >= limits.positions:
        raise ConfigError(
            f"position {positions.max()} is needed, but the model has {limits.positions}; shorten the prompt"
        )
    if given is None:
        return
    wrong = (given != positions) & (positions >= 0)
    if wrong.any():
        row, column = np.argwhere(wrong)[0].tolist()
        raise ConfigError(
            f"position_ids say {given[row, column]} where row {row} is at position {positions[row, column]}: pages "
            "hold consecutive positions from 0 on. Leave position_ids out, or give open() the same attention_mask"
        )


def _open_step(past: PagedPast, ids: np.ndarray, is_token: np.ndarray) -> Step:
    counts = is_token.sum(axis=1)
    for row, seq in enumerate(past.sequences):
        seq.append(ids[row, is_token[row]])
    active = np.flatnonzero(counts)
    try:
        return past.pages.step_over([past.sequences[row] for row in active.tolist()], counts[active].astype(np.int64))
    except BaseException:
        _forget_token_ids(past)
        raise


def _forget_token_ids(past: PagedPast) -> None:
    for seq in past.sequences:
        seq.truncate(seq.length)


def named_arguments(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call of the model by name, without those that are None; the past as the model calls it."""
    names = list(inspect.signature(model.forward).parameters)
    named = {**dict(zip(names, args, strict=False)), **kwargs}
    past_name = next(name for name in PAST_NAMES if name in names)
    for name in PAST_NAMES:
        if named.get(name) is not None:
            named[past_name] = named.pop(name)
    return {name: value for name, value in named.items() if value is not None}


def check_arguments(arguments: dict[str, Any]) -> None:
    """Raises ConfigError for arguments that pages can't honour."""
    if "inputs_embeds" in arguments:
        raise ConfigError("inputs_embeds: pages are shared by token ids; call the model with input_ids")
    if arguments.get("output_attentions"):
        raise ConfigError("output_attentions: attention weights are never formed over pages; detach the model for them")
    if arguments.get("use_cache") is False:
        raise ConfigError("use_cache=False: the pages are the cache; leave it out, or detach the model")
    unknown = sorted(set(arguments) - _HARMLESS - _READ_HERE)
    if unknown:
        raise ConfigError(
            f"{', '.join(unknown)}: may change what a token's K and V are, so pages can't honour it; leave it out"
        )
