"""A Llama-like model with a range of 1,048,576 positions: random weights, and the attention of a real one.

Four layers of 16 query heads and 4 KV heads of 64 numbers (Llama 3.2 1B has 16 layers of 32 and 8), in bf16: 4 KiB of K
and V a token, so that one sequence of a million tokens takes 4 GiB, and ten take 40 GiB.
"""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from kvpager.bench.report import SEED

POSITIONS = 1 << 20


def million_model() -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=32_000,
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=4,
        num_attention_heads=16,
        num_key_value_heads=4,
        max_position_embeddings=POSITIONS,
        rope_theta=500_000.0,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        return LlamaForCausalLM(config).to(torch.bfloat16).eval()
