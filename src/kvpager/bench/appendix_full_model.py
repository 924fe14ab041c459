"""A Llama-like model of two layers for contexts of up to 1,048,576 tokens: random weights, and little K and V.

One KV head of 32 numbers in bf16: 256 bytes of K and V a token, so that 500 requests of 16,384 tokens, or ten of
1,048,576, are 2 GiB and more that really exist, on a machine with 24 GiB.
"""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from kvpager.bench.report import SEED

POSITIONS = 1 << 20


def small_model() -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=2048,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=POSITIONS,
        rope_theta=500_000.0,
        initializer_range=0.2,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        return LlamaForCausalLM(config).to(torch.bfloat16).eval()
