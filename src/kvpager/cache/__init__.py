"""What users touch: sequences, steps, faults and reclaim over one pool. Pure bookkeeping; imports no torch."""
