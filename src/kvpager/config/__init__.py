"""What a user can set: sizes, memory, tiers, and the table of options."""

from kvpager.config.load import (
    list_options,
    list_server_options,
    load_options,
    load_server_options,
    reserved_variables,
)
from kvpager.config.memory import (
    AUTO_HOST_PERCENT,
    AUTO_POOL_PERCENT,
    auto_host_size,
    auto_pool_size,
    available_memory,
    resolve_capacity,
    resolve_host_capacity,
    total_memory,
)
from kvpager.config.options import DEFAULT_PAGE_SIZE, Options
from kvpager.config.options_page import options_table
from kvpager.config.server_options import ServerOptions
from kvpager.config.sizes import AUTO, MAX_SIZE, format_size, parse_size
from kvpager.config.table import OptionInfo
from kvpager.config.tiers import DiskTier, HostTier, RemoteTier, TierOptions

__all__ = [
    "AUTO",
    "AUTO_HOST_PERCENT",
    "AUTO_POOL_PERCENT",
    "DEFAULT_PAGE_SIZE",
    "MAX_SIZE",
    "DiskTier",
    "HostTier",
    "OptionInfo",
    "Options",
    "RemoteTier",
    "ServerOptions",
    "TierOptions",
    "auto_host_size",
    "auto_pool_size",
    "available_memory",
    "format_size",
    "list_options",
    "list_server_options",
    "load_options",
    "load_server_options",
    "options_table",
    "parse_size",
    "reserved_variables",
    "resolve_capacity",
    "resolve_host_capacity",
    "total_memory",
]
