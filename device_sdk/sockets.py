"""Sockets that programs of this project serve on."""

import os
import socket

from device_sdk.errors import ConfigurationError


def listening(host: str, port: int) -> socket.socket:
    """A socket on which a server may be run; port 0 becomes a free one. Raises ConfigurationError where it cannot be
    had."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # The protocol is named because asyncio sends small answers at once (TCP_NODELAY) only where it can see it;
        # without, every answer waits 40 ms for the client's delayed acknowledgement.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        if os.name == "posix":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(1024)
    except OSError as error:
        raise ConfigurationError(f"{host}:{port}: cannot listen there ({error}); choose another --port") from error
    return listener
