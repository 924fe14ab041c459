"""The version, in one place. Knows nothing else."""

__version__ = "0.1.0"
