"""Physical bookkeeping of one device: layout, block states, pool, page tables. Decides nothing, imports no torch."""
