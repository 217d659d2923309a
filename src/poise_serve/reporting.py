"""A gateway reports on its services, to programs of its user on this machine (`poise.drivers.gateways`).

The folder lets only its owner in, so it takes no key, whatever the gateway asks of clients. `poise_serve.app` has the
same counts for Prometheus, at the address of the gateway.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from poise.drivers import sockets
from poise.drivers.gateways import ANSWER_SECONDS, socket_of
from poise.model.reports import ServiceReport

Report = Callable[[int], list[ServiceReport]]
"""Makes the reports for a window in nanoseconds."""


async def listen(folder: Path, mark: str, report: Report) -> asyncio.Server:
    """Report to all who ask, until the server is closed; `forget` removes the socket."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, TimeoutError, ValueError):  # a client that goes away, or sends anything else
            line = await asyncio.wait_for(reader.readline(), ANSWER_SECONDS)
            if line:
                writer.write(msgspec.json.encode(report(int(line))))
                await asyncio.wait_for(writer.drain(), ANSWER_SECONDS)
        writer.close()

    return await asyncio.start_unix_server(answer, sock=sockets.listen(socket_of(folder, mark)))


def forget(folder: Path, mark: str) -> None:
    socket_of(folder, mark).unlink(missing_ok=True)


__all__ = ["forget", "listen"]
