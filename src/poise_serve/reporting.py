"""Reports on the services of a gateway, to programs of its user on this machine (`poise.drivers.gateways`).

Only the owner can access the folder, so reports need no key, even if clients of the gateway do. `poise_serve.app`
exports the same counts to Prometheus, at the address of the gateway.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from poise.drivers import sockets
from poise.drivers.gateways import ANSWER_SECONDS, socket_of
from poise.model.reports.services import ServiceReport

Report = Callable[[int], list[ServiceReport]]
"""Returns the reports for a window in nanoseconds."""


async def listen(folder: Path, mark: str, report: Report) -> asyncio.Server:
    """Answer requests for reports until the server is closed; `forget` removes the socket."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, TimeoutError, ValueError):  # the client disconnects, or sends anything else
            line = await asyncio.wait_for(reader.readline(), ANSWER_SECONDS)
            if line:
                writer.write(msgspec.json.encode(report(int(line))))
                await asyncio.wait_for(writer.drain(), ANSWER_SECONDS)
        writer.close()

    return await asyncio.start_unix_server(answer, sock=sockets.listen(socket_of(folder, mark)))


def forget(folder: Path, mark: str) -> None:
    socket_of(folder, mark).unlink(missing_ok=True)


__all__ = ["forget", "listen"]
