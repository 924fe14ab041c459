"""Levels of storage for pages. The protocol, and the device tier."""
