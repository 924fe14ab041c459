"""What names a model's weights: part of every content key, so that KV of other weights is never found."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def fingerprint_of(model: PreTrainedModel, arithmetic: str = "") -> bytes:
    """SHA-256 over the configuration and every weight: part of every content key.

    ``arithmetic`` names what else the KV of two processes has to agree in; empty: rounding may differ.
    """
    state = hashlib.sha256(_configuration(model).encode())
    state.update(arithmetic.encode())
    for name, parameter in model.state_dict().items():
        state.update(f"{name} {parameter.dtype} {tuple(parameter.shape)}".encode())
        state.update(parameter.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return state.digest()


def _configuration(model: PreTrainedModel) -> str:
    """Where the model's files lie is left out: the same model elsewhere is the same model."""
    content = json.loads(model.config.to_json_string(use_diff=False))
    for part in (content, *(each for each in content.values() if isinstance(each, dict))):
        part.pop("_name_or_path", None)
    return json.dumps(content, sort_keys=True)
