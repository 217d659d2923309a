"""Gateways before the same upstreams: each tells the others what it sends and hears.

Every gateway keeps estimates of all requests of the group, its own and those of the others. So all of them route by the
same knowledge: work in flight, speeds, and prompts that servers keep. What is learned from an answer does not depend on
who sent the request. Failures, limits of upstreams, the budget of retries, the quarantine and the allowances of keys
count all of them, too. A gateway that finds an upstream unhealthy, or healthy again, makes the others probe it.

Gateways on other machines get the same news over HTTP (`poise_serve.links`). The rest is about those of one machine.

News are datagrams between Unix sockets in the folder of the gateways, which only their owner can open. They are never
waited for: without room for it, a message is lost. Each gateway therefore also tells, every `ALIVE_EVERY`, which
requests it has in flight; the others drop those that it does not name. The requests of a gateway that says nothing for
`GONE_AFTER` are dropped, as it was killed. One that has just started says so, and the others tell it what they have in
flight.

A scrape of metrics reaches any of them. It gets those of all, with the label `gateway`.
"""

import asyncio
import contextlib
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path

import msgspec

from poise.decoding import msgpack_decoder
from poise_serve.links import Links
from poise_serve.model.news import FIRST_ELSEWHERE, Alive, Joined, Message, News

ALIVE_EVERY = 1.0
GONE_AFTER = 5.0
"""Seconds."""

SHOWN_WITHIN = 1.0
"""Seconds to wait for the metrics of another gateway."""

ROOM = 4 << 20
"""Bytes of messages that wait for a gateway that is busy."""

MOST = 200_000
"""Maximum size of a message in bytes: a prompt of 4,096 blocks takes 20,000."""


_encode = msgspec.msgpack.Encoder().encode
_decode: msgspec.msgpack.Decoder[Message] = msgpack_decoder(Message)


class Peers:
    """The other gateways: those of the group on this machine, and those on other machines."""

    def __init__(
        self, folder: Path, group: str = "", number: int = 0, say: Callable[[str], None] = lambda text: None
    ) -> None:
        """`group` names the sockets in the folder, empty if this gateway is the only one of this machine. `number` is
        that of this gateway. `say` tells the operator which other machines cannot be reached.
        """
        self.heard: list[Callable[[int, News], None]] = []
        """Called with each message: the number of the gateway, and its news."""
        self.gone: list[Callable[[int], None]] = []
        """Called with the number of a gateway that has ended."""
        self.in_flight: Callable[[], list[int]] = list
        """Returns the turns of the requests that this gateway has in flight."""
        self.known: list[Callable[[], Iterable[News]]] = []
        """Each returns news for a gateway that has just started, or was not reached for a while."""
        elsewhere = FIRST_ELSEWHERE + secrets.randbits(48)
        self.links = Links(group or secrets.token_hex(8), elsewhere, self._state, self._take_on, say)
        """Those on other machines."""
        self._folder, self._group, self._number = folder, group, number
        self._socket: socket.socket | None = None
        self._others: list[str] = []
        self._seen: dict[int, float] = {}
        self._beating: asyncio.Task[None] | None = None
        self._showing: asyncio.Server | None = None

    async def start(self, metrics: Callable[[], bytes]) -> None:
        """Begin to tell and to hear. `metrics` returns those of this gateway, as text."""
        if self._group:
            await self._listen(metrics)
        self.links.start()
        self._beating = asyncio.create_task(self._beat())

    async def _listen(self, metrics: Callable[[], bytes]) -> None:
        path = self._path(self._number)
        path.unlink(missing_ok=True)  # of the same gateway, which was killed
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, ROOM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, ROOM)
        self._socket.bind(str(path))
        asyncio.get_running_loop().add_reader(self._socket, self._hear)

        async def show(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError):
                writer.write(await asyncio.to_thread(metrics))
                await writer.drain()
            writer.close()

        shown = self._path(self._number).with_suffix(SHOWN)
        shown.unlink(missing_ok=True)
        self._showing = await asyncio.start_unix_server(show, str(shown))

    async def stop(self) -> None:
        if self._beating is not None:
            self._beating.cancel()
        await self.links.stop()
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
        self.links.tell(news)
        self._tell_here(self._number, news)

    def _tell_here(self, gateway: int, news: News, serial: int = 0) -> None:
        """Tell the others of this machine."""
        if self._socket is None or not self._others:
            return
        data = _encode(Message(gateway, news, serial))
        for other in self._others:
            with contextlib.suppress(OSError):
                self._socket.sendto(data, other)

    def _state(self) -> Iterable[News]:
        """Return the report for a gateway that has not heard this one before."""
        return [Alive(self.in_flight()), *chain.from_iterable(known() for known in self.known)]

    async def metrics(self, own: bytes) -> bytes:
        """Return the metrics of all gateways of this machine; `own` are those of this one. One that does not answer is
        left out.
        """
        if not self._group:
            return own
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
        self._tell_here(self._number, Joined())
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
            if message.serial:
                self.links.know(message.gateway, message.serial)
            self._take(message.gateway, message.news)

    def _take_on(self, gateway: int, news: Sequence[News], serial: int) -> None:
        """Take news from another machine, and pass them on to the others of this one."""
        for one in news:
            self._tell_here(gateway, one, serial)
            self._take(gateway, one)

    def _take(self, gateway: int, news: News) -> None:
        self._seen[gateway] = time.monotonic()
        for told in self.heard:
            told(gateway, news)
        if isinstance(news, Joined) and self._socket is not None:
            self._look()
            for one in self._state():
                with contextlib.suppress(OSError):
                    self._socket.sendto(_encode(Message(self._number, one)), str(self._path(gateway)))


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


__all__ = ["Peers", "together"]
