"""``idiolect openapi``: the server's interface as a document, without a server."""

from pathlib import Path
from typing import Annotated

import typer

from device_sdk.commands.output import deliver


def command(
    output: Annotated[Path | None, typer.Option(help="Write it to a file.  [default: print it]")] = None,
) -> None:
    """Write the server's OpenAPI document: every route with its bodies, answers and refusals."""
    from server.web.openapi import document

    deliver(document(), output is None, output)
