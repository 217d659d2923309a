"""Gateways of one group on one machine, before the same upstreams: each tells the others what it sends and hears.

Every gateway keeps estimates of all requests of the group, its own and those of the others. So all of them route by the
same knowledge: work in flight, speeds, and prompts that servers keep. What is learned from an answer does not depend on
who sent the request. Limits of upstreams, the budget of retries and the allowances of keys count all of them, too.

News are datagrams between Unix sockets in the folder of the gateways, which only their owner can open. They are never
waited for: without room for it, a message is lost. Each gateway therefore also tells, every `ALIVE_EVERY`, which
requests it has in flight; the others drop those that it does not name. The requests of a gateway that says nothing for
`GONE_AFTER` are dropped, as it was killed. One that has just started says so, and the others tell it what they have in
flight.

A scrape of metrics reaches any of them. It gets those of all, with the label `gateway`.
"""

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from poise.decoding import msgpack_decoder
from poise_serve.model.routing import Asked

ALIVE_EVERY = 1.0
GONE_AFTER = 5.0
"""Seconds."""

SHOWN_WITHIN = 1.0
"""Seconds to wait for the metrics of another gateway."""

ROOM = 4 << 20
"""Bytes of messages that wait for a gateway that is busy."""

MOST = 200_000
"""Maximum size of a message in bytes: a prompt of 4,096 blocks takes 20,000."""


class Sent(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """A request was sent to an upstream."""

    turn: int
    server: str
    model: str
    asked: Asked


class Began(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """An answer that streams has begun."""

    turn: int


class Ended(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """A request is over; with an answer, as in `Estimates.answered`."""

    turn: int
    answered: bool
    held: int
    wrote: float
    cached: float | None


class Alive(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """The gateway serves, and has these requests in flight."""

    turns: list[int]


class Retried(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """A retry was taken from the budget that all share."""


class Spent(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """A key has spent requests and tokens of its allowances."""

    key: str
    requests: int
    tokens: int


class Joined(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """The gateway has just started: it has no requests in flight, and knows of none."""


News = Sent | Began | Ended | Alive | Retried | Spent | Joined


class Message(msgspec.Struct, frozen=True, array_like=True):
    """News of one gateway, by its number in the group."""

    gateway: int
    news: News


_encode = msgspec.msgpack.Encoder().encode
_decode: msgspec.msgpack.Decoder[Message] = msgpack_decoder(Message)


class Peers:
    """The other gateways of the group."""

    def __init__(self, folder: Path, group: str, number: int) -> None:
        """`group` names the sockets in the folder; `number` is that of this gateway."""
        self.heard: list[Callable[[int, News], None]] = []
        """Called with each message: the number of the gateway, and its news."""
        self.gone: list[Callable[[int], None]] = []
        """Called with the number of a gateway that has ended."""
        self.in_flight: Callable[[], list[int]] = list
        """Returns the turns of the requests that this gateway has in flight."""
        self._folder, self._group, self._number = folder, group, number
        self._socket: socket.socket | None = None
        self._others: list[str] = []
        self._seen: dict[int, float] = {}
        self._beating: asyncio.Task[None] | None = None
        self._showing: asyncio.Server | None = None

    async def start(self, metrics: Callable[[], bytes]) -> None:
        """Begin to tell and to hear. `metrics` returns those of this gateway, as text."""
        path = self._path(self._number)
        path.unlink(missing_ok=True)  # of the same gateway, which was killed
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, ROOM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, ROOM)
        self._socket.bind(str(path))
        loop = asyncio.get_running_loop()
        loop.add_reader(self._socket, self._hear)
        self._beating = loop.create_task(self._beat())

        async def show(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError):
                writer.write(await asyncio.to_thread(metrics))
                await writer.drain()
            writer.close()

        shown = self._path(self._number).with_suffix(SHOWN)
        shown.unlink(missing_ok=True)
        self._showing = await asyncio.start_unix_server(show, str(shown))

    def stop(self) -> None:
        if self._beating is not None:
            self._beating.cancel()
        if self._showing is not None:
            self._showing.close()
            self._path(self._number).with_suffix(SHOWN).unlink(missing_ok=True)
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None
            self._path(self._number).unlink(missing_ok=True)

    def tell(self, news: News) -> None:
        """Tell all others. A message that cannot be delivered at once is lost."""
        if self._socket is None or not self._others:
            return
        data = _encode(Message(self._number, news))
        for other in self._others:
            with contextlib.suppress(OSError):
                self._socket.sendto(data, other)

    async def metrics(self, own: bytes) -> bytes:
        """Return the metrics of all gateways; `own` are those of this one. One that does not answer is left out."""
        others = [path for path in self._folder.glob(f"{self._group}.*{SHOWN}") if _number(path) != self._number]
        found = await asyncio.gather(*(_read(path) for path in others))
        texts = {self._number: own} | {_number(path): text for path, text in zip(others, found, strict=True)}
        return together(texts)

    def _path(self, number: int) -> Path:
        return self._folder / f"{self._group}.{number}.peer"

    def _look(self) -> None:
        """Find the others."""
        own = self._path(self._number)
        self._others = [str(path) for path in self._folder.glob(f"{self._group}.*.peer") if path != own]

    async def _beat(self) -> None:
        self._look()
        self.tell(Joined())
        while True:
            self._look()
            self.tell(Alive(self.in_flight()))
            late = time.monotonic() - GONE_AFTER
            for gateway in [gateway for gateway, seen in self._seen.items() if seen < late]:
                del self._seen[gateway]
                for told in self.gone:
                    told(gateway)
            await asyncio.sleep(ALIVE_EVERY)

    def _hear(self) -> None:
        for _ in range(100):  # then others have a turn
            if self._socket is None:
                return
            try:
                data = self._socket.recv(MOST)
                message = _decode.decode(data)
            except BlockingIOError:
                return
            except (OSError, msgspec.DecodeError):
                continue
            self._seen[message.gateway] = time.monotonic()
            if isinstance(message.news, Joined):
                self._look()
            for told in self.heard:
                told(message.gateway, message.news)


SHOWN = ".shown"


def _number(path: Path) -> int:
    """Return the number of the gateway that a socket belongs to."""
    return int(path.name.split(".")[-2])


async def _read(path: Path) -> bytes:
    try:
        async with asyncio.timeout(SHOWN_WITHIN):
            reader, writer = await asyncio.open_unix_connection(str(path))
            text = await reader.read()
            writer.close()
            return text
    except (OSError, TimeoutError):
        return b""


def together(texts: Mapping[int, bytes]) -> bytes:
    """Join metrics in Prometheus' text format, by gateway: each sample gets the label `gateway`."""
    families: dict[bytes, list[bytes]] = {}
    for gateway, text in sorted(texts.items()):
        family = b""
        for line in text.splitlines():
            if line.startswith(b"#"):
                name = line.split(b" ", 3)[2]
                if name != family:
                    family = name
                head = families.setdefault(family, [])
                if line not in head:
                    head.append(line)
            elif line:
                families.setdefault(family, []).append(_labelled(line, b'gateway="%d"' % gateway))
    return b"\n".join(line for lines in families.values() for line in lines) + b"\n"


def _labelled(sample: bytes, label: bytes) -> bytes:
    name, brace, rest = sample.partition(b"{")
    if brace and b" " not in name:
        return b"%b{%b,%b" % (name, label, rest)
    name, _, value = sample.partition(b" ")
    return b"%b{%b} %b" % (name, label, value)


__all__ = ["Alive", "Began", "Ended", "News", "Peers", "Retried", "Sent", "Spent", "together"]
