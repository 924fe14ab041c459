"""The routes under /v1/kv: what the memory is, and what of it may be managed."""
