"""Measurements, each a module with ``run(quick)``; every result is checked for correctness before it is timed."""
