"""Calls that return a stream: output, results, commands beside a task, captures, files, records of the log."""

import contextlib
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from poise.client.link import SILENCE, THOUGHT, Link, part, quoted, unreachable
from poise.decoding import json_decoder
from poise.errors import Fault, NotFound, PoiseError, Unreachable, from_code
from poise.model.captures import Capture, CaptureEnded, CaptureKind, CaptureLine, CaptureStarted
from poise.model.reports.jobs import PartReport
from poise.model.reports.streams import ExecEnd, ExecLine, ExecOutput, InputReport, LogEnd, LogLine, LogPiece

if TYPE_CHECKING:
    from poise.drivers.giving import Source

GONE = 66
"""Exit code by which a node reports a missing file. (`drivers/getting.py`)"""


def logs(
    link: Link,
    name: str,
    *,
    task: str = "",
    follow: bool = False,
    tail: int = -1,
    since: float = 0.0,
    rank: int = -1,
    begun: Callable[[], None] | None = None,
) -> Iterator[LogLine]:
    """Yield the output of a job; see `Client.logs`."""
    given: dict[tuple[str, int, str], int] = {}
    path = f"/v1/jobs/{part(name)}/logs?follow={str(follow).lower()}&task={quoted(task)}&rank={rank}"
    decode = json_decoder(LogLine).decode
    cut = f"&tail={tail}&since={since!r}" if tail >= 0 or since else ""
    last = cut
    while True:
        seen: dict[tuple[str, int, str], int] = {}
        link.find_leader()
        with contextlib.suppress(OSError), link.stream(path + last) as response:
            for line in response:
                last = ""  # from here on the position in each stream is known
                if line == b"\n":
                    continue  # a keep-alive
                piece = decode(line)
                if isinstance(piece, LogPiece) and not piece.task:
                    if begun is not None:
                        begun()
                    continue
                if isinstance(piece, LogEnd):
                    if not follow:
                        yield from _kept_elsewhere(link, path + cut, given)
                    yield piece
                    return
                stream = (piece.task, piece.epoch, piece.stream)
                at = piece.offset if piece.offset >= 0 else seen.get(stream, 0)
                seen[stream] = end = at + len(piece.data)
                repeated = min(max(0, given.get(stream, 0) - at), len(piece.data))
                given[stream] = max(end, given.get(stream, 0))
                if repeated < len(piece.data):
                    yield msgspec.structs.replace(piece, data=piece.data[repeated:], offset=at + repeated)
        link.status()  # wait for the control plane to return, or raise


def _kept_elsewhere(link: Link, path: str, given: Collection[tuple[str, int, str]]) -> Iterator[LogLine]:
    """Yield output that only another control plane has, because it led when the attempts ended."""
    decode = json_decoder(LogLine).decode
    for turn in range(link.turn + 1, link.turn + len(link.home.doors)):
        ways = contextlib.suppress(OSError, PoiseError)
        with ways, link.stream(path, turn, SILENCE) as response:
            for line in response:
                piece = decode(line)
                if isinstance(piece, LogEnd) or not piece.data:
                    continue
                if (piece.task, piece.epoch, piece.stream) not in given:
                    yield piece


def results(link: Link, name: str) -> Iterator[PartReport]:
    """Yield a row for each task; see `Client.results`."""
    decode = json_decoder(PartReport).decode
    with link.stream(f"/v1/jobs/{part(name)}/results") as response:
        yield from (decode(line) for line in response if line != b"\n")


def beside(link: Link, name: str, what: str, body: dict[str, Any]) -> Generator[ExecLine]:
    """Yield what a program beside a running task writes, then its end."""
    decode = json_decoder(ExecLine).decode
    link.find_leader()
    link.status()  # check that there is one to ask
    try:
        with link.stream(f"/v1/jobs/{part(name)}/{what}", body=body) as response:
            for line in response:
                if line != b"\n":
                    yield (told := decode(line))
                    if isinstance(told, ExecEnd):
                        return
    except ConnectionError:
        pass
    except OSError as error:
        raise unreachable(link.home, error) from None
    raise Unreachable("the control plane has ended, and so has the command", hint=f"`poise show {name}`")


def capture(
    link: Link,
    name: str,
    kind: CaptureKind = "stacks",
    *,
    task: str = "",
    rank: int | None = None,
    lasts: str | float | None = None,
    begun: Callable[[str], None] | None = None,
) -> Capture:
    """Capture the activity of a running task; see `Client.capture`."""
    body = {"kind": kind, "task": task, "rank": rank, "lasts": lasts}
    decode = json_decoder(CaptureLine).decode
    link.find_leader()
    link.status()  # check that there is one to ask
    with contextlib.suppress(ConnectionError), link.stream(f"/v1/jobs/{part(name)}/capture", body=body) as lines:
        for line in lines:
            told = decode(line) if line != b"\n" else None
            if isinstance(told, CaptureStarted) and begun is not None:
                begun(told.node)
            if isinstance(told, CaptureEnded) and told.error is not None:
                raise from_code(told.error)
            if isinstance(told, CaptureEnded) and told.capture is not None:
                return told.capture
    raise Unreachable("the control plane has ended, and so has the capture", hint=f"`poise capture {name}`")


def get(link: Link, name: str, path: str, *, task: str = "", rank: int | None = None) -> Iterator[bytes]:
    """Yield files of a task; see `Client.get`."""
    body = {"path": path, "task": task, "rank": rank}
    decode = json_decoder(ExecLine).decode
    link.find_leader()
    link.status()  # check that there is one to ask
    try:
        with link.stream(f"/v1/jobs/{part(name)}/files", body=body) as response:
            for line in response:
                told = decode(line) if line != b"\n" else None
                if isinstance(told, ExecOutput):
                    yield told.data
                elif isinstance(told, ExecEnd) and told.exit_code == GONE:
                    raise NotFound(told.note, field=path, hint=f"`poise show {name}`, `poise get {name}:.`")
                elif isinstance(told, ExecEnd) and told.exit_code:
                    raise Fault(told.note or "the files cannot be read", code="E216", field=path)
                elif isinstance(told, ExecEnd):
                    return
    except OSError as error:
        raise unreachable(link.home, error) from None
    raise Unreachable("the control plane has ended before all files came", hint=f"`poise get {name}:{path}` again")


def feed(link: Link, path: str, source: "Source | bytes", of: Mapping[str, str], *, joins: bool) -> None:
    """Send the whole standard input of a task or a command; see `Client.feed`."""
    from poise.drivers.giving import Bytes  # most commands have no input

    given = Bytes(source) if isinstance(source, bytes) else source
    epoch = at = before = 0  # `before` counts the bytes of other senders
    report = InputReport(wanted=False)
    while not report.over:
        data, end = b"", False
        if report.wanted:
            data, end = given.next(at)
        elif epoch:
            given.rest()
        piece = {**of, "epoch": epoch, "at": before + at, "data": data, "end": end}
        piece |= {"size": given.size, "hold": given.hold}
        report = link.call("POST", path, InputReport, piece, timeout=THOUGHT)
        if report.taken < 0:
            report = InputReport(epoch=report.epoch, wanted=report.epoch == epoch > 0, over=report.over)
            continue
        sent = at + len(data)
        if report.epoch != epoch:
            epoch, before = report.epoch, report.taken - at if joins else 0
            given.begun()
        at = report.taken - before
        if joins and at > sent:
            at, before = sent, report.taken - sent


def records(link: Link, route: str, after: int, follow: bool) -> Iterator[bytes]:
    """Yield records of the log; see `Client.events`."""
    while True:
        try:
            with link.stream(f"{route}after={after}&follow={str(follow).lower()}") as response:
                for line in response:
                    if line.startswith(b"id: "):
                        after = int(line[4:])
                    elif line.startswith(b"data: "):
                        yield line[6:].rstrip(b"\n")
                    elif line.startswith(b": whole"):
                        return
        except OSError:
            pass
        link.status()  # wait for the control plane to return, or raise; then resume after the last record
