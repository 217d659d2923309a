"""A gateway reports on its services, to programs of its user on this machine: the one side, and the other.

A program connects to the socket beside those of the replicas, sends the window in nanoseconds and a line feed, and gets
the reports as one JSON value. The folder lets only its owner in, so it takes no key, whatever the gateway asks of
clients. `poise.gateway.app` has the same counts for Prometheus, at the address of the gateway.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from poise.decoding import json_decoder
from poise.drivers import sockets
from poise.model.reports import ServiceReport
from poise.units import MINUTE

if TYPE_CHECKING:
    from asyncio import Server, StreamReader, StreamWriter

ANSWER_SECONDS = 2.0
"""Seconds that a gateway may take to report."""

Report = Callable[[int], list[ServiceReport]]
"""Makes the reports for a window in nanoseconds."""


async def listen(folder: Path, mark: str, report: Report) -> "Server":
    """Report to all who ask, until the server is closed; `forget` removes the socket."""
    import asyncio  # dear, and the side that asks does without

    async def answer(reader: "StreamReader", writer: "StreamWriter") -> None:
        with suppress(OSError, TimeoutError, ValueError):  # a client that goes away, or sends anything else
            line = await asyncio.wait_for(reader.readline(), ANSWER_SECONDS)
            if line:
                writer.write(msgspec.json.encode(report(int(line))))
                await asyncio.wait_for(writer.drain(), ANSWER_SECONDS)
        writer.close()

    return await asyncio.start_unix_server(answer, sock=sockets.listen(_socket(folder, mark)))


def forget(folder: Path, mark: str) -> None:
    _socket(folder, mark).unlink(missing_ok=True)


def ask(folder: Path, window: int = MINUTE) -> Iterator[tuple[str, list[ServiceReport] | None]]:
    """Each gateway that is on file, by its mark, with its reports; None where it does not answer: it has just been
    killed and not been replaced yet, or it hangs, or is of an older version.
    """
    for record in sorted(folder.glob("*.gateway")):
        try:
            yield record.stem, _asked(_socket(folder, record.stem), window)
        except (OSError, msgspec.DecodeError):
            if record.exists():  # else it has just ended
                yield record.stem, None


def _asked(path: Path, window: int) -> list[ServiceReport]:
    with sockets.connect(path, ANSWER_SECONDS) as channel:
        channel.sendall(b"%d\n" % window)
        told = b"".join(iter(lambda: channel.recv(1 << 16), b""))
    return json_decoder(list[ServiceReport]).decode(told)


def _socket(folder: Path, mark: str) -> Path:
    return folder / f"{mark}.sock"


__all__ = ["ask", "forget", "listen"]
