"""Serving the application over HTTP, from one process or several, until a signal stops it."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from device_sdk.sockets import listening
from server.processes import end_with_parent, watch

if TYPE_CHECKING:
    from server.registry.initial import InitialModel
    from server.rounds.evaluation import Evaluate
    from server.rounds.server_step import Rehearse
    from server.settings import ServerSettings

DESCRIPTORS = 8192
"""Files and connections that a process asks the system for; many grant only 1,024 to who does not ask."""


def run(
    settings: ServerSettings,
    initial: InitialModel | None,
    *,
    host: str,
    port: int,
    ready_file: Path | None = None,
    inherited: int | None = None,
    rehearse: Rehearse | None = None,
    evaluate: Evaluate | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM. Raises ConfigurationError when the address cannot be used. inherited: descriptor
    of a socket that listens already, from the process that started this one and ends it."""
    import uvicorn

    from server.app import create_app
    from server.web.connections import deadline_protocol

    _allow_descriptors()
    with _listening(host, port, ready_file, inherited) as (listener, url):
        config = uvicorn.Config(
            create_app(settings, initial, evaluate, rehearse),
            http=deadline_protocol(settings.limits, settings.trusted_proxies),
            log_config=None,
            log_level="warning",
            access_log=False,  # it would quote addresses with their queries; requests are logged by their routes
            proxy_headers=False,  # the application decides whom it believes
            timeout_graceful_shutdown=10,
        )
        server = uvicorn.Server(config)
        if ready_file is not None:
            # Connections queue in the listener's backlog from here on, so the address works before the loop runs.
            write_private(ready_file, {"url": url, "pid": os.getpid()})
        logging.getLogger("idiolect.server").info("serving on %s", url)

        def stop(_number: int, _frame: FrameType | None) -> None:
            server.should_exit = True

        # uvicorn raises the signal it stopped for once more when it is done; with this handler that is a clean exit.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        if inherited is not None:
            end_with_parent(lambda: os.kill(os.getpid(), signal.SIGTERM))
        server.run(sockets=[listener])


def run_many(
    settings: ServerSettings, initial: InitialModel | None, *, host: str, port: int, ready_file: Path | None = None
) -> None:
    """Serve with several processes until SIGINT or SIGTERM: claim the state, bring it up to date, and watch over them.
    Raises ConfigurationError when the address cannot be used, StateError when a process does not come up."""
    from server.service import Service

    with _listening(host, port, ready_file) as (listener, url):

        def told(ids: list[int]) -> None:
            if ready_file is not None:
                write_private(ready_file, {"url": url, "pid": os.getpid(), "processes": ids})
            logging.getLogger("idiolect.server").info("serving on %s with %d processes", url, len(ids))

        # Held, not started: the processes do the work.
        with closing(Service(replace(settings, workers=None, ray=None, updates=None, rollout=None), initial)):
            watch([sys.executable, *sys.orig_argv[1:]], settings.processes, listener, told)


def write_private(path: Path, content: Mapping[str, str | int | list[int]]) -> None:
    """Whole or not at all, readable by the owner only."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.touch(mode=0o600)
    temporary.write_text(json.dumps(content) + "\n")
    temporary.replace(path)


def _allow_descriptors() -> None:
    """As many as the system lets this process have: a download takes one for its connection and one for its file."""
    if sys.platform == "win32":
        return
    import resource

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if most == resource.RLIM_INFINITY else min(most, DESCRIPTORS)
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


@contextmanager
def _listening(
    host: str, port: int, ready_file: Path | None, inherited: int | None = None
) -> Iterator[tuple[socket.socket, str]]:
    """(a socket, its URL). Bound before the state is opened: a port in use is found while nothing has happened, and 0
    becomes a number. The ready file, whoever writes it, goes when the block ends."""
    os.umask(0o077)
    listener = listening(host, port) if inherited is None else socket.socket(fileno=inherited)
    try:
        yield listener, f"http://{host}:{listener.getsockname()[1]}"
    finally:
        listener.close()
        if ready_file is not None:
            ready_file.unlink(missing_ok=True)
