"""What is fuzzed: the compilers of files in this process, and a control plane in a process of its own."""

import asyncio
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import websockets
from websockets.asyncio.client import unix_connect

from fuzz.mutate import FRAMES, NODE, Kind, Request, body_request, file_text, frames, raw_request
from poise.config import Home
from poise.drivers.plugins import choose_document
from poise.drivers.security import worker_key
from poise.drivers.yamlfile import parse_yaml
from poise.errors import CODES, PoiseError
from poise.kernel.frames import Frames
from poise.model.calls import ATTEMPT
from poise.model.fleetfile import compile_fleet
from poise.model.jobs import Ending
from poise.model.messages import Attempt, Desired, Ended, FromAgent, Hello, Report, ToAgent
from poise.model.resources import Node
from poise.model.spec import compile_spec

SLOW = 30.0
"""Seconds in which every file must be compiled and every whole request answered."""

PATIENCE = 0.3
"""Seconds that the answer to a request which is none is waited for: there may be none."""

WALL = 1.8e9
PARTS = ("files", "bodies", "heads", "frames")
LIVE = PARTS[1:]

_to_agent: msgspec.msgpack.Decoder[tuple[int, ToAgent]] = msgspec.msgpack.Decoder(tuple[int, ToAgent])


def chance_of(seed: int, part: str, number: int) -> random.Random:
    """Every input has its own: each can be made again alone."""
    return random.Random(f"{seed}/{part}/{number}")  # noqa: S311 — a seed, not a secret


# --- files -----------------------------------------------------------------------------------------------------------

COMPILERS: dict[Kind, Callable[[Any], object]] = {
    "job": lambda document: compile_spec(document, wall=WALL),
    "fleet": compile_fleet,
    "policy": choose_document,
}


def check_file(kind: Kind, data: bytes) -> str:
    """What is wrong with how this content is read; empty if nothing is."""
    began = time.monotonic()
    try:
        COMPILERS[kind](parse_yaml(data.decode("utf-8", "replace"), "file.yaml"))
    except PoiseError as error:
        record = error.record
        if record.code not in CODES or record.code >= "E2" or not record.message or not record.hint:
            return f"an error that helps nobody: {record}"
        try:
            msgspec.json.encode(record)
        except UnicodeEncodeError as unsaid:
            return f"an error that cannot be written: {unsaid}"
    except Exception as error:  # that is what is looked for
        return f"{type(error).__name__}: {error}"
    seconds = time.monotonic() - began
    return f"it took {seconds:.1f} s" if seconds > SLOW else ""


def file_input(seed: int, number: int) -> tuple[Kind, bytes]:
    return file_text(chance_of(seed, "files", number))


# --- a control plane -------------------------------------------------------------------------------------------------


class Target:
    """One control plane, alone in a home, with one node that says of every task at once that it is done."""

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="poise-"))
        self.home = Home(self.root / "home")
        self.said = self.root / "said"
        with self.said.open("wb") as file:
            command = [sys.executable, "-m", "poise.control", str(self.home.root), "--port", "0", "--history", "100"]
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=file)
        deadline = time.monotonic() + 60
        while not self.home.endpoint.exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(self.said.read_text())
            time.sleep(0.02)
        self.token = self.home.token.read_text()
        self.bearer = f"Authorization: Bearer {self.token}"

    def close(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.root, ignore_errors=True)

    def resident(self) -> int:
        """Bytes of memory that it holds."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def complaint(self) -> str:
        """What its log says that it should not; empty if nothing."""
        if self.process.poll() is not None:
            return f"it ended with {self.process.returncode}: {self.said.read_text()[-2000:]}"
        text = self.said.read_text(errors="replace")
        for word in ("Traceback", " ERROR ", "never awaited", "was never retrieved"):
            at = text.find(word)
            if at >= 0:
                return text[max(0, at - 300) : at + 3000]
        return ""

    # --- one input ---------------------------------------------------------------------------------------------------

    async def check(self, part: str, chance: random.Random) -> str:
        """Send one input of a part; what is wrong with the answer, or empty."""
        if part == "frames":
            return await self.check_frames(chance)
        make = body_request if part == "bodies" else raw_request
        return await self.check_request(make(chance, self.token))

    async def check_request(self, request: Request) -> str:
        try:
            answer = await asyncio.wait_for(self.exchange(request), SLOW if request.whole else PATIENCE)
        except TimeoutError:
            return f"not answered in {SLOW:g} s" if request.whole else ""
        except OSError:  # hung up on while it was still talking
            return ""
        if not answer:
            return "no answer" if request.whole else ""
        return judged(answer)

    async def exchange(self, request: Request) -> bytes:
        """Everything that is answered, up to the end of the connection or of the one answer."""
        reader, writer = await asyncio.open_unix_connection(str(self.home.socket))
        try:
            writer.write(request.data)
            await writer.drain()
            return await _answer(reader, request.method)
        finally:
            writer.close()

    async def check_frames(self, chance: random.Random) -> str:
        """One connection of a node, a caller or a worker; only the closing of it may answer."""
        path = chance.choice(tuple(FRAMES))
        attempt = Attempt("j1.main", 1)
        key = worker_key(self.token, attempt) if path == "/v1/workers" else self.token
        headers = {"Authorization": f"Bearer {key}", ATTEMPT: str(attempt)}
        sent = frames(chance, path)
        try:
            async with unix_connect(
                str(self.home.socket), f"ws://poise{path}", additional_headers=headers,
                compression=None, open_timeout=SLOW, close_timeout=SLOW,
            ) as channel:  # fmt: skip
                for frame in sent:
                    if chance.randrange(20) == 0:
                        await channel.send(frame.decode("latin-1"))
                    else:
                        await channel.send(frame)
        except websockets.ConnectionClosed:
            return ""
        except TimeoutError:
            return "a channel was not opened or closed in time"
        except websockets.InvalidHandshake as error:
            return f"no channel: {error}"
        return ""

    # --- beside it ---------------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def node(self) -> AsyncIterator[None]:
        """A node on which everything is done at once."""
        task = asyncio.create_task(self._be_node())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _be_node(self) -> None:
        node = msgspec.convert(NODE | {"name": "works"}, Node)
        headers = {"Authorization": f"Bearer {self.token}"}
        encode = msgspec.msgpack.encode
        while True:
            with contextlib.suppress(OSError, websockets.WebSocketException):
                async with unix_connect(
                    str(self.home.socket), "ws://poise/v1/channel", additional_headers=headers, max_size=None
                ) as channel:
                    serial, frames = 0, Frames()
                    said: FromAgent = Hello(node=node)
                    await channel.send(encode((frames.number(), said)))
                    async for frame in channel:
                        _, message = _to_agent.decode(frame if isinstance(frame, bytes) else frame.encode())
                        if not isinstance(message, Desired):
                            continue
                        over = [launch.attempt for launch in message.launches] + [*message.stops, *message.recalls]
                        serial += 1
                        ended = tuple(Ended(attempt=one, ending=Ending(outcome="done", run=1)) for one in over)
                        await channel.send(encode((frames.number(), Report(serial=serial, ended=ended))))
            await asyncio.sleep(0.1)

    async def drip(self, stop: asyncio.Event) -> None:
        """Slow clients: each says a byte at a time, and leaves in the middle."""
        number = 0
        while not stop.is_set():
            number += 1
            data = raw_request(chance_of(0, "slow", number), self.token).data[:40]
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_unix_connection(str(self.home.socket))
                for at in range(len(data)):
                    writer.write(data[at : at + 1])
                    await asyncio.sleep(0.01)
                writer.close()

    async def sweep(self) -> None:
        """Cancel what is left: jobs that wait for what never comes would fill the memory rightly."""
        listing = Request(f"GET /v1/jobs HTTP/1.1\r\nHost: poise\r\n{self.bearer}\r\n\r\n".encode(), True)
        answer = await self.exchange(listing)
        for job in msgspec.json.decode(answer.partition(b"\r\n\r\n")[2]):
            if job["status"] not in ("done", "failed", "cancelled", "skipped"):
                line = f"POST /v1/jobs/{job['id']}/cancel HTTP/1.1\r\nHost: poise\r\nContent-Length: 0\r\n"
                await self.exchange(Request(f"{line}{self.bearer}\r\n\r\n".encode(), True, "POST"))


async def _answer(reader: asyncio.StreamReader, method: str) -> bytes:
    """One answer, with its body put together if it came in chunks."""
    try:
        start = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        return error.partial
    except asyncio.LimitOverrunError:
        return b"a head that does not end"
    fields = start.lower()
    if method == "HEAD" or b" 204 " in start[:16] or b" 304 " in start[:16] or b" 101 " in start[:16]:
        return start
    body = b""
    if b"transfer-encoding: chunked" in fields:
        while True:
            size = int((await reader.readuntil(b"\r\n")).strip() or b"0", 16)
            body += (await reader.readexactly(size + 2))[:size]
            if not size:
                return start + body
    if b"content-length: " in fields:
        length = int(fields.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        return start + await reader.readexactly(length)
    return start + await reader.read()


def judged(answer: bytes) -> str:
    """What is wrong with an answer, or empty: a failure of ours, or an error without its body."""
    start, _, body = answer.partition(b"\r\n\r\n")
    words = start.split(None, 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
        return f"no HTTP: {answer[:200]!r}"
    status = int(words[1])
    if status >= 500:
        return f"{status}: {body[:500]!r}"
    if status < 400 or not body:
        return ""
    if b"application/json" not in start.lower():  # what was no HTTP is refused by who reads HTTP
        handshake = status in (405, 426) and body.startswith(b"Failed to open a WebSocket")
        return "" if status == 400 or handshake else f"{status} without an error: {answer[:300]!r}"
    try:
        error = msgspec.json.decode(body)["error"]
    except (msgspec.DecodeError, KeyError, TypeError):
        return f"{status} without an error: {body[:300]!r}"
    return "" if error["code"] in CODES and error["code"] < "E2" and error["message"] else f"{status}: {error}"


@contextlib.contextmanager
def target() -> Iterator[Target]:
    made = Target()
    try:
        yield made
    finally:
        made.close()
