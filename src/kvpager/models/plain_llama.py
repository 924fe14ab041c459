"""A Llama decoder in torch's own modules: the names, the operations and their order are those of Hugging Face's.

So its logits have the same bits, and whatever works on the parts of theirs works on the parts of this. It is here
because importing theirs costs more than a hundred MiB and most of the time of a start. For inference alone: it keeps no
KV, and attends only by what ``set_attention`` was given. Knows no files and no pages.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from kvpager.errors import InvariantError

Attention = Callable[..., tuple[Tensor, object]]
"""(module, query, key, value, mask, scaling=...) -> ([batch, tokens, heads, dim], anything); query, key and value are
[batch, heads, tokens, dim]."""


@dataclass(frozen=True, slots=True)
class Output:
    logits: Tensor  # [batch, kept, vocab]


class Linear(nn.Linear):
    """Torch's, without a bias and without first numbers: drawing those for shapes alone would import a compiler."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, bias=False)

    def reset_parameters(self) -> None:
        pass


class Embedding(nn.Embedding):
    """As ``Linear``."""

    def reset_parameters(self) -> None:
        pass


class RMSNorm(nn.Module):
    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.variance_epsilon = epsilon

    def forward(self, rows: Tensor) -> Tensor:
        wide = rows.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * wide.to(rows.dtype)


class Rotary(nn.Module):
    """cos and sin of positions [batch, T], each [batch, T, head_dim]."""

    def __init__(self, theta: float, head_dim: int) -> None:
        super().__init__()
        self._theta, self._head_dim = theta, head_dim

    def forward(self, like: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        powers = torch.arange(0, self._head_dim, 2, dtype=torch.float) / self._head_dim
        angles = positions[..., None].float() * (1.0 / (self._theta**powers)).to(positions.device)
        both = torch.cat((angles, angles), dim=-1)
        return both.cos().to(like.dtype), both.sin().to(like.dtype)


def _rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """``heads`` [batch, heads, T, dim]"""
    first, second = heads[..., : heads.shape[-1] // 2], heads[..., heads.shape[-1] // 2 :]
    return (heads * cos[:, None]) + (torch.cat((-second, first), dim=-1) * sin[:, None])


class SelfAttention(nn.Module):
    def __init__(self, config: Any, layer: int) -> None:
        super().__init__()
        self.layer_idx, self.head_dim = layer, config.head_dim
        self.attention: Attention | None = None
        of_queries, of_keys = (n * config.head_dim for n in (config.num_attention_heads, config.num_key_value_heads))
        self.q_proj = Linear(config.hidden_size, of_queries)
        self.k_proj = Linear(config.hidden_size, of_keys)
        self.v_proj = Linear(config.hidden_size, of_keys)
        self.o_proj = Linear(of_queries, config.hidden_size)

    def forward(self, rows: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
        if self.attention is None:
            raise InvariantError("a plain model was run without attention; use the engine")
        shape = (*rows.shape[:-1], -1, self.head_dim)
        q, k, v = (each(rows).view(shape).transpose(1, 2) for each in (self.q_proj, self.k_proj, self.v_proj))
        q, k = _rotate(q, *angles), _rotate(k, *angles)
        mixed, _ = self.attention(self, q, k, v, None, scaling=self.head_dim**-0.5)
        found: Tensor = self.o_proj(mixed.reshape(*rows.shape[:-1], -1).contiguous())
        return found


class MLP(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.gate_proj = Linear(config.hidden_size, config.intermediate_size)
        self.up_proj = Linear(config.hidden_size, config.intermediate_size)
        self.down_proj = Linear(config.intermediate_size, config.hidden_size)
        self.act_fn = nn.SiLU()

    def forward(self, rows: Tensor) -> Tensor:
        found: Tensor = self.down_proj(self.act_fn(self.gate_proj(rows)) * self.up_proj(rows))
        return found


class Layer(nn.Module):
    def __init__(self, config: Any, layer: int) -> None:
        super().__init__()
        self.self_attn = SelfAttention(config, layer)
        self.mlp = MLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, rows: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
        rows = rows + self.self_attn(self.input_layernorm(rows), angles)
        found: Tensor = rows + self.mlp(self.post_attention_layernorm(rows))
        return found


class Base(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config, number) for number in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.rotary_emb = Rotary(config.rope_parameters["rope_theta"], config.head_dim)

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        rows: Tensor = self.embed_tokens(ids)
        angles = self.rotary_emb(rows, positions)
        for layer in self.layers:
            rows = layer(rows, angles)
        found: Tensor = self.norm(rows)
        return found


class PlainLlama(nn.Module):
    """``config``: as transformers has it. REQUIRES: nothing in it asks for more than is here (plain_config.py).

    Made on torch's ``meta`` device, its parameters have shapes and no memory until ``load_state_dict(assign=True)``.
    """

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.generation_config: Any = None
        self.model = Base(config)
        self.lm_head = Linear(config.hidden_size, config.vocab_size)
        self.tie()

    def tie(self) -> None:
        """Where the config says so, the head has the embedding's weights."""
        if self.config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight

    @property
    def device(self) -> torch.device:
        return self.model.norm.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.model.norm.weight.dtype

    def set_attention(self, name: str | None, attention: Attention | None) -> None:
        """``name``: what the config says of it from now on. None: it can't be run."""
        self.config._attn_implementation = name
        for layer in self.model.layers:
            assert isinstance(layer, Layer)
            layer.self_attn.attention = attention

    def forward(
        self, input_ids: Tensor, position_ids: Tensor, use_cache: bool = False, logits_to_keep: Tensor | None = None
    ) -> Output:
        """``input_ids``, ``position_ids`` [batch, T]; ``logits_to_keep`` [kept]: indices of tokens; None: all."""
        if use_cache:
            raise InvariantError("a plain model keeps no KV: its attention does")
        rows = self.model(input_ids, position_ids)
        return Output(self.lm_head(rows if logits_to_keep is None else rows[:, logits_to_keep]))
