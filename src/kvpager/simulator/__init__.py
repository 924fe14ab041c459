"""Replay of recorded requests: what a cache of some size under some policy would have hit. No torch, no clock."""
