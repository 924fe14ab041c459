"""The remote tier: pages in a store that other processes share."""
