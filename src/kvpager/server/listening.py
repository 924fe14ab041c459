"""The socket that a server listens on. Loads nothing heavy, so that a port that is not free is told at once."""

import os
import socket

from kvpager.config import ServerOptions
from kvpager.errors import ConfigError


def bind(options: ServerOptions) -> socket.socket:
    """Nobody can connect before something listens on it. Raises ConfigError, with the remedy."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            options.host, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(
            f"can't listen on {options.host}: {error.strerror}; give an address of this machine"
        ) from error
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise ConfigError(
            f"can't listen on {options.host} port {options.port}: {os.strerror(error.errno or 0).lower()}; "
            "give another --port, or 0 for any free one"
        ) from error
    return bound
