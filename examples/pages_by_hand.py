"""Pages without a model: write K and V, fork, copy on write, read back. Run it: python examples/pages_by_hand.py"""

import torch

from kvpager import KVLayout, open_cache

LAYOUT = KVLayout(layers=2, kv_heads=2, head_dim=8, dtype="float32", page_size=4)


def main() -> None:
    print(f"{LAYOUT.bytes_per_token} bytes per token, {LAYOUT.page_bytes} per page of {LAYOUT.page_size} tokens")
    k, v = torch.randn(2, 2, 10, 2, 8)  # K and V, each [layers, tokens, kv_heads, head_dim]
    with open_cache(LAYOUT, num_blocks=8) as cache:
        story = cache.sequence()
        story.write(0, k, v)  # 10 tokens take 3 pages: three demand faults
        print("position 9 lies in", story.translate(9))

        ending = story.fork()  # shares all three blocks
        print("after the fork, shared blocks:", cache.statistics().shared_blocks)

        ending.write(9, v[:, :1], k[:, :1])  # the page is shared, so the fork gets a copy of it first
        print("after the write, shared blocks:", cache.statistics().shared_blocks)

        read_k, read_v = story.read(0, 10)
        print("the original is unchanged:", torch.equal(read_k, k) and torch.equal(read_v, v))
        print("the fork has its own ending:", torch.equal(ending.read(9, 10)[0], v[:, :1]))
        print(cache.statistics())


if __name__ == "__main__":
    main()
