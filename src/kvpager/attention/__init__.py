"""Attention over pages: packed queries in, packed outputs out. Knows no sequences' owners, no scheduler, no model."""

from kvpager.attention.backend import AttentionBackend, LayerOptions, Plan
from kvpager.attention.select import backends, select

__all__ = ["AttentionBackend", "LayerOptions", "Plan", "backends", "select"]
