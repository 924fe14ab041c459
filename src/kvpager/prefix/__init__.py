"""Finding KV that was computed before, by its exact content and scope. Holds no bytes and evicts nothing."""
