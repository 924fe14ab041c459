"""Which columns of a batch are tokens and which are padding. Reads ids and masks; knows no cache and no model.

    column   0                    T
    row 0    | token token token  |      pads 0
    row 1    | pad   token token  |      pads 1: columns before the first token of a row; nothing after it is padding

Padding on the right, and holes, are refused: the last column is where the next token is predicted.
"""

import numpy as np
import torch
from torch import Tensor

from kvpager.errors import ConfigError


def read_tokens(input_ids: object, vocabulary: int) -> np.ndarray:
    """Token ids as int32 [rows, columns]. Raises ConfigError for a wrong shape or type, or unknown ids."""
    if not isinstance(input_ids, Tensor) or input_ids.dim() != 2 or input_ids.numel() == 0:
        shape = f"of shape {tuple(input_ids.shape)}" if isinstance(input_ids, Tensor) else type(input_ids).__name__
        raise ConfigError(f"input_ids must be a tensor [rows, columns] with at least one token, not {shape}")
    if input_ids.dtype.is_floating_point or input_ids.dtype.is_complex or input_ids.dtype == torch.bool:
        raise ConfigError(f"input_ids must hold whole numbers, not {input_ids.dtype}")
    ids = input_ids.detach().cpu().numpy()
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= vocabulary:
        raise ConfigError(f"token id {low if low < 0 else high} is outside the vocabulary of {vocabulary} tokens")
    return ids.astype(np.int32)


def read_pads(attention_mask: object, rows: int, columns: int) -> np.ndarray:
    """[rows] columns of padding on the left. No mask means no padding; a row without any token has ``columns`` pads.

    Raises ConfigError for a mask that is not [rows, columns] of 0 and 1, or that hides a column after a token.
    """
    if attention_mask is None:
        return np.zeros(rows, np.int64)
    if not isinstance(attention_mask, Tensor) or attention_mask.dim() != 2:
        shape = tuple(attention_mask.shape) if isinstance(attention_mask, Tensor) else type(attention_mask).__name__
        raise ConfigError(f"attention_mask must be [rows, columns] of 0 and 1, not {shape}: pages know no other masks")
    mask = attention_mask.detach().cpu().numpy()
    if mask.shape != (rows, columns):
        raise ConfigError(
            f"attention_mask is {mask.shape[0]} x {mask.shape[1]}, but {rows} rows and {columns} columns are needed: "
            "it covers the cached columns and the new ones"
        )
    is_token = mask != 0
    if not ((mask == 0) | (mask == 1)).all():
        raise ConfigError("attention_mask must hold only 0 and 1")
    broken = np.flatnonzero((is_token[:, :-1] & ~is_token[:, 1:]).any(axis=1))
    if len(broken):
        raise ConfigError(
            f"attention_mask hides a column after a token of row {broken[0]}; pad on the left, without holes"
        )
    return np.asarray(columns - is_token.sum(axis=1), np.int64)


def guess_pads(ids: np.ndarray, pad_token: int | None) -> np.ndarray:
    """[rows] columns of padding in a batch that came without a mask, as far as its pad tokens tell.

    The longest row of a batch has none, so what all rows start with is content (a pad token that begins every prompt).
    """
    if pad_token is None or len(ids) == 1:
        return np.zeros(len(ids), np.int64)
    runs = np.cumprod(ids == pad_token, axis=1).sum(axis=1)
    return np.asarray(runs - runs.min(), np.int64)
