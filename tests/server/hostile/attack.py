"""Hostile senders of every kind at once, as a process: ``python -m tests.server.hostile.attack PORT HEAD``.

A hundred connections send in drops and are opened again as they are cut off; beside them come bombs and bodies that
lie, one after the other. HEAD: hexadecimal bytes of the head of a request that an enrolled device signed."""

import asyncio
import gzip
import itertools
import sys
from contextlib import suppress

BOMB = gzip.compress(bytes(1 << 26), 9, mtime=0)
"""64 MiB of zeros in 64 KiB."""


def head(path: str, *lines: str, method: str = "POST") -> bytes:
    """The head of a request with these header lines."""
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: here", *lines, "", ""]).encode("latin-1")


async def slow(port: int, begin: bytes) -> None:
    while True:
        with suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(begin)
            while not writer.is_closing():
                await asyncio.sleep(0.5)
                writer.write(b"x")
                await writer.drain()
        await asyncio.sleep(0.1)


async def bombard(port: int) -> None:
    bombs = (
        head("/v1/enrol", "Content-Encoding: gzip", f"Content-Length: {len(BOMB)}") + BOMB,
        head("/v1/enrol", "Content-Length: 60000") + b"[" * 60000,
        head("/v1/enrol", "Content-Length: 99999999") + b" " * 1000,
        head("/v1/enrol") + b"{}",
        head("/v1/check-in", "Content-Length: 1") + b"{}" * 20,
    )
    for bomb in itertools.cycle(bombs):
        with suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(bomb)
            await reader.read(1000)
            writer.close()
        await asyncio.sleep(0.05)


async def main(port: int, signed: bytes) -> None:
    begins = [b"POST /v1/enrol HTTP/1.1\r\nX-", head("/v1/enrol", "Content-Length: 50000"), signed, b""]
    await asyncio.gather(bombard(port), *(slow(port, begin) for begin in begins for _ in range(25)))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), bytes.fromhex(sys.argv[2])))
