"""Captures of running tasks: made on the task's node, stored here beside the task's output."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

import msgspec

from poise.control.consoles import Consoles
from poise.decoding import json_decoder
from poise.drivers.captures import Draft
from poise.errors import ErrorRecord
from poise.model.captures import MOST_BYTES, CaptureEnded, CaptureKind, CaptureLine, CaptureStarted
from poise.model.messages import Attempt
from poise.model.reports.streams import ExecEnd, ExecOutput, ExecStarted
from poise.model.tenants import Bearer
from poise.units import SECOND, format_bytes

MOST_SAID = 16 << 10
"""Maximum bytes of the capture program's stderr that are kept."""


class _Said(msgspec.Struct):
    message: str
    hint: str


async def capture(
    consoles: Consoles, logs: Path, node: str, attempt: Attempt, bearer: Bearer, kind: CaptureKind, lasts: int
) -> AsyncGenerator[CaptureLine]:
    """Capture an attempt for `lasts` nanoseconds; stop when the reader stops."""
    draft, said = await asyncio.to_thread(Draft, logs, attempt, kind), b""
    kept = False
    running = consoles.run(node, attempt, bearer, (), {}, capture=(kind, f"{lasts / SECOND:g}"))
    try:
        async with aclosing(running) as pieces:
            async for piece in pieces:
                if isinstance(piece, ExecStarted):
                    yield CaptureStarted(node)
                elif isinstance(piece, ExecOutput) and piece.stream == "err":
                    said = (said + piece.data)[:MOST_SAID]
                elif isinstance(piece, ExecOutput):
                    await asyncio.to_thread(draft.write, piece.data)
                    if draft.size > MOST_BYTES:
                        why = f"the capture has more than {format_bytes(MOST_BYTES)}"
                        yield CaptureEnded(error=_error(why, "`--for` a shorter time"))
                        return
                elif piece.exit_code or not draft.size:
                    yield CaptureEnded(error=_why(said, piece))
                    return
                else:
                    made = await asyncio.to_thread(draft.keep)
                    kept = True
                    yield CaptureEnded(capture=made)
    finally:
        if not kept:
            draft.drop()


def _why(said: bytes, end: ExecEnd) -> ErrorRecord:
    try:
        told = json_decoder(_Said).decode(said)
        return _error(told.message, told.hint)
    except msgspec.DecodeError:
        why = end.note or said.decode("utf-8", "replace").strip()[-200:] or f"exit code {end.exit_code}"
        return _error(f"there is no capture: {why}", "again, while the task runs")


def _error(message: str, hint: str) -> ErrorRecord:
    return ErrorRecord(code="E170", message=message, hint=hint)
