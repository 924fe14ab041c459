"""The engine: requests in, tokens out, many sequences a step over one paged KV cache."""
