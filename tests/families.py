"""A tiny random model of every family that is supported, with windows shorter than the sequences.

Weights are large (initializer_range 0.2), so that logits are far apart and one wrong row changes the next tokens.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    GptOssConfig,
    GraniteConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    Olmo2Config,
    Phi3Config,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
    SmolLM3Config,
)

VOCABULARY = 256
WINDOW = 12

_COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_MIXED = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]


@dataclass(frozen=True)
class Family:
    """``config`` class and its own options; ``windowed``: layers that give pages back."""

    config: type
    options: dict[str, Any] = field(default_factory=dict)
    windowed: int = 0

    def model(self, seed: int = 0) -> PreTrainedModel:
        """A model in fp32 with the attention that is the family's own default."""
        config = self.config(**{**_COMMON, **self.options})
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = AutoModelForCausalLM.from_config(config).eval()
            _spread_sinks(model)
        model.generation_config.eos_token_id = None
        return model


def _spread_sinks(model: PreTrainedModel) -> None:
    for name, parameter in model.named_parameters():
        if name.endswith("sinks"):
            torch.nn.init.normal_(parameter, std=2.0)


FAMILIES = {
    "llama": Family(LlamaConfig),
    "smollm3": Family(SmolLM3Config, {"no_rope_layer_interval": 2}),
    "qwen2": Family(Qwen2Config),
    "qwen3": Family(Qwen3Config, {"head_dim": 16}),
    "qwen3-windows": Family(
        Qwen3Config,
        {"head_dim": 16, "use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 2},
        windowed=2,
    ),
    "mistral": Family(MistralConfig, {"sliding_window": WINDOW, "head_dim": 16}, windowed=4),
    "mistral-full": Family(MistralConfig, {"sliding_window": None, "head_dim": 16}),
    "gemma2": Family(
        Gemma2Config,
        {
            "head_dim": 16,
            "sliding_window": WINDOW,
            "layer_types": _MIXED,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 30.0,
            "query_pre_attn_scalar": 16,
            "tie_word_embeddings": False,  # tied, a random model only repeats the last token
        },
        windowed=2,
    ),
    "gemma3": Family(
        Gemma3TextConfig,
        {
            "head_dim": 16,
            "sliding_window": WINDOW,
            "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
            "query_pre_attn_scalar": 16,
            "tie_word_embeddings": False,
        },
        windowed=3,
    ),
    "gpt_oss": Family(
        GptOssConfig,
        {
            "head_dim": 16,
            "sliding_window": WINDOW,
            "layer_types": _MIXED,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        },
        windowed=2,
    ),
    "phi3": Family(Phi3Config, {"sliding_window": None}),
    "phi3-windows": Family(Phi3Config, {"sliding_window": WINDOW}, windowed=4),
    "gpt2": Family(GPT2Config, {"num_key_value_heads": 4}),
    "olmo2": Family(Olmo2Config),
    "granite": Family(GraniteConfig, {"attention_multiplier": 0.2, "logits_scaling": 2.0, "residual_multiplier": 0.5}),
    "qwen3_moe": Family(
        Qwen3MoeConfig,
        {"head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48},
    ),
    "mixtral": Family(MixtralConfig, {"sliding_window": None, "num_local_experts": 4, "num_experts_per_tok": 2}),
}
