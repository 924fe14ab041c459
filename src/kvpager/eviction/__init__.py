"""Which evictable page goes first. One protocol, one small file per policy. Policies free nothing themselves."""
