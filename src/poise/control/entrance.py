"""Accepts connections: through local sockets, and with TLS from other machines.

A client is a *stranger* until its first request: its token is not known yet, while its connection holds a descriptor,
and memory for TLS. So strangers have a time limit, and a maximum number per origin. A TLS handshake costs the server
more than the client; it starts only when there is data to read and room for one more, in order of arrival. If too many
connections are silent, the longest silent one is closed for the next. A handshake that has started keeps its full time,
even if others wait.
"""

import asyncio
import contextlib
import logging
import signal
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from types import FrameType
from typing import Any, cast

import uvicorn

from poise.control.guard import App
from poise.control.heads import Heads
from poise.control.lines import Lines

SILENT_SECONDS, HANDSHAKE_SECONDS = 5.0, 10.0
"""Time limits for the first byte, and for the handshake. The wait for room and the wait for a slot each have the
handshake's limit too, counted separately: a handshake that started with most of its time gone could not finish."""

SLOW_SECONDS = 2.0
"""A handshake that takes longer than this gives up its slot but continues. It is not closed: on a slow machine every
handshake takes this long, and each would be closed for the next. So at most `HANDSHAKE_SECONDS / SLOW_SECONDS` times
the number of slots are in progress at once."""

MAX_STRANGERS, MAX_SILENT = 256, 4096
"""Limits per origin: on admitted connections without a request yet, and on connections before admission, which are
silent or wait for room and cost one descriptor each. Closing those early would only make their clients reconnect."""

CROWDED_SECONDS = 1.0
"""The entrance is crowded while a client waits this long for the room and the slot of its handshake."""

AT_ONCE = 64
"""Connections accepted in one turn of the loop."""

HANDSHAKES, HANDSHAKES_OF_ONE = 64, 16
"""Concurrent handshakes in total, and of one origin; others queue. With thousands in parallel, each would take longer
than its client waits, and none would succeed.
"""

FEW_ORIGINS = 64
"""Number of origins up to which idle origins are not removed."""

EXHAUSTED_SECONDS = 0.5
"""Seconds for which no connection is accepted after the descriptors run out."""

_log = logging.getLogger("poise.control")


TakeIn = Callable[[socket.socket, Callable[[], None]], Coroutine[Any, Any, None]]
"""Turns a socket into a connection. The callback is called at its first request, or when it is lost."""


class Handshakes:
    """At most `most` concurrent handshake slots; each also needs a slot of `among`."""

    def __init__(self, most: int, among: "Handshakes | None" = None) -> None:
        slots = asyncio.Semaphore(most)
        self._slots: tuple[asyncio.Semaphore, ...] = (slots,) if among is None else (slots, *among._slots)

    @contextlib.asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """Wait for a slot, and hold it during a handshake, but for no longer than `SLOW_SECONDS`."""
        with contextlib.ExitStack() as held:
            for slots in self._slots:
                await slots.acquire()
                held.callback(slots.release)
            held.callback(asyncio.get_running_loop().call_later(SLOW_SECONDS, held.close).cancel)
            yield


class Strangers:
    """Strangers of one origin: silent ones in order of arrival, waiting ones in order of their first data, and the
    number of admitted ones.
    """

    def __init__(self, handshakes: Handshakes, on_crowded: Callable[[], None]) -> None:
        self.on_crowded = on_crowded
        self.silent: dict[Arrival, None] = {}
        self.waiting: dict[Arrival, None] = {}
        self.taken_in = 0
        self.handshakes = Handshakes(HANDSHAKES_OF_ONE, handshakes)

    def __len__(self) -> int:
        return len(self.silent) + len(self.waiting) + self.taken_in

    def make_room(self) -> bool:
        """Close the longest silent connections if there is no room. Return whether one more may wait."""
        while len(self.silent) + len(self.waiting) >= MAX_SILENT and self.silent:
            next(iter(self.silent)).give_way()
        return len(self.silent) + len(self.waiting) < MAX_SILENT

    def take_in(self) -> None:
        """Admit the connections that have waited longest, as many as there is room for."""
        while self.waiting and self.taken_in < MAX_STRANGERS:
            next(iter(self.waiting)).come_in()


class Arrival:
    """One connection from its arrival to its first request."""

    def __init__(self, sock: socket.socket, strangers: Strangers, take_in: TakeIn) -> None:
        self._sock = sock
        self._strangers = strangers
        self._take_in = take_in
        self._is_stranger = True
        self._spoke = 0.0
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(sock, self._speaks)
        self._late = self._loop.call_later(SILENT_SECONDS, self.turn_away)
        strangers.silent[self] = None

    def give_way(self) -> None:
        """Close this connection for the next one, unless it has sent data that was not read yet."""
        try:
            spoken = bool(self._sock.recv(1, socket.MSG_PEEK))
        except OSError:
            spoken = False
        if spoken:
            self._speaks()
        else:
            self.turn_away()

    def turn_away(self) -> None:
        """Close a connection that was silent for too long, or for which there was no room in time."""
        self._late.cancel()
        self._no_longer_silent()
        self._strangers.waiting.pop(self, None)
        self._note_wait()
        self._sock.close()

    def come_in(self) -> None:
        """Admit the connection, now that there is room for it."""
        self._late.cancel()
        del self._strangers.waiting[self]
        self._strangers.taken_in += 1
        self._coming = self._loop.create_task(self._come_in())

    def _note_wait(self) -> None:
        """Tell if this client has waited too long since its first data."""
        if self._spoke and self._loop.time() - self._spoke > CROWDED_SECONDS:
            self._strangers.on_crowded()

    def _no_longer_silent(self) -> None:
        if self in self._strangers.silent:
            self._loop.remove_reader(self._sock)
            del self._strangers.silent[self]

    def _speaks(self) -> None:
        self._no_longer_silent()
        self._late.cancel()
        self._late = self._loop.call_later(HANDSHAKE_SECONDS, self.turn_away)
        self._spoke = self._loop.time()
        self._strangers.waiting[self] = None
        self._strangers.take_in()

    async def _come_in(self) -> None:
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS) as limit, self._strangers.handshakes.one():
                self._note_wait()
                limit.reschedule(self._loop.time() + HANDSHAKE_SECONDS)
                await self._take_in(self._sock, self._no_stranger)
        except OSError as error:  # also TLS errors and TimeoutError
            _log.debug("no connection was made: %s", error or "the handshake took too long")
            self._sock.close()
            self._no_stranger()

    def _no_stranger(self) -> None:
        if self._is_stranger:
            self._is_stranger = False
            self._strangers.taken_in -= 1
            self._strangers.take_in()


class Origins(dict[str, Strangers]):
    """Strangers by origin. Idle origins are removed together whenever the number of origins has doubled, because
    thousands may arrive at once.
    """

    def __init__(self, on_crowded: Callable[[], None]) -> None:
        super().__init__()
        self._on_crowded = on_crowded
        self._handshakes = Handshakes(HANDSHAKES)
        self._look_at = FEW_ORIGINS

    def of(self, origin: str) -> Strangers:
        if origin not in self:
            if len(self) >= self._look_at:
                for other in [name for name, strangers in self.items() if not len(strangers)]:
                    del self[other]
                self._look_at = max(FEW_ORIGINS, 2 * len(self))
            self[origin] = Strangers(self._handshakes, self._on_crowded)
        return self[origin]


class Listening:
    """One socket at which connections come in, as what `uvicorn` calls a server."""

    def __init__(self, listening: socket.socket, origins: Origins, take_in: TakeIn) -> None:
        self._listening = listening
        self._origins = origins
        self._take_in = take_in
        self._loop = asyncio.get_running_loop()
        self._again: asyncio.TimerHandle | None = None
        listening.setblocking(False)
        self._listen()

    def close(self) -> None:
        """Stop accepting connections, and close those without a request."""
        self._loop.remove_reader(self._listening)
        if self._again is not None:
            self._again.cancel()
        for strangers in self._origins.values():
            for arrival in [*strangers.silent, *strangers.waiting]:
                arrival.turn_away()

    async def wait_closed(self) -> None:
        """Return at once: there is nothing to wait for."""

    def _listen(self) -> None:
        self._again = None
        self._loop.add_reader(self._listening, self._let_in)

    def _let_in(self) -> None:
        for _ in range(AT_ONCE):
            try:
                sock, address = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                _log.warning("nobody is let in for a moment: %s", error)
                self._loop.remove_reader(self._listening)
                self._again = self._loop.call_later(EXHAUSTED_SECONDS, self._listen)
                return
            sock.setblocking(False)
            self._receive(sock, origin_of(sock, address))

    def _receive(self, sock: socket.socket, origin: str) -> None:
        strangers = self._origins.of(origin)
        if strangers.make_room():
            Arrival(sock, strangers, self._take_in)
        else:
            sock.close()


def origin_of(sock: socket.socket, address: Any) -> str:
    """Return the origin of a connection: a local user, an IPv4 address, or an IPv6 /64 network."""
    if sock.family == socket.AF_UNIX:
        _, user, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
        return f"user {user}"
    if sock.family == socket.AF_INET6:
        return socket.inet_pton(socket.AF_INET6, address[0].partition("%")[0])[:8].hex()
    return str(address[0])


class Entrance(uvicorn.Server):
    """Serves the app on some sockets, with or without TLS. All entrances close on SIGTERM and SIGINT; then the process
    shuts down. `on_crowded` is called while clients wait long for their handshakes.
    """

    def __init__(
        self,
        app: App,
        listening: list[socket.socket],
        context: ssl.SSLContext | None = None,
        on_crowded: Callable[[], None] = lambda: None,
    ) -> None:
        config = uvicorn.Config(
            app,
            loop="uvloop",
            http=Heads,
            ws=Lines,
            ws_ping_interval=None,
            ws_per_message_deflate=context is not None,  # compression saves nothing on one machine
            lifespan="off",
            access_log=False,
            log_config=None,
            timeout_graceful_shutdown=1,
            server_header=False,
            proxy_headers=False,
            date_header=False,
        )
        config.load()
        super().__init__(config)
        self._listening = listening
        self._context = context
        self._on_crowded = on_crowded
        self._closing = asyncio.Event()

    async def open(self, close: Callable[[], None]) -> None:
        """Serve until a signal arrives; the signal calls `close`, which closes all entrances."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, close)
        await self.serve(sockets=self._listening)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do nothing: uvicorn would raise the signal again after serving, and skip the rest of the shutdown."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen without uvicorn's servers, which allocate a connection, with TLS 256 KiB, for every client."""
        origins = Origins(self._on_crowded)
        self.servers = cast(Any, [Listening(sock, origins, self._take_in) for sock in sockets or []])
        self.started = True

    def listen_too(self, sock: socket.socket) -> None:
        """Accept connections on another socket from now on."""
        self.servers.append(cast(Any, Listening(sock, Origins(self._on_crowded), self._take_in)))

    async def main_loop(self) -> None:
        """Wait for the exit; uvicorn would poll for it ten times a second."""
        await self.on_tick(0)  # builds the default headers of all answers
        await self._closing.wait()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        self._closing.set()

    async def _take_in(self, sock: socket.socket, no_stranger: Callable[[], None]) -> None:
        def protocol() -> Heads:
            return Heads(no_stranger, self.config, self.server_state, self.lifespan.state)

        await asyncio.get_running_loop().connect_accepted_socket(protocol, sock, ssl=self._context)
