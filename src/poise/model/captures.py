"""Captures: profiler data of a running task over some seconds."""

from typing import Literal, get_args

import msgspec

from poise.errors import ErrorRecord
from poise.units import SECOND

CaptureKind = Literal["stacks", "dump", "torch"]
"""`stacks` a flame graph of Python stacks, sampled by py-spy · `dump` the stack of each Python thread now, by py-spy ·
`torch` a trace by the profiler of PyTorch, in a training session of Poise.
"""

KINDS: tuple[CaptureKind, ...] = get_args(CaptureKind)

ENDING: dict[CaptureKind, str] = {"stacks": "svg", "dump": "txt", "torch": "json.gz"}
"""File name ending of a capture: a page for a browser, text, or a trace that Perfetto and Chrome open."""

LASTS: dict[CaptureKind, int] = {"stacks": 10 * SECOND, "dump": 0, "torch": 2 * SECOND}
"""Default duration of a capture in nanoseconds; a PyTorch trace has 1 MB per second or more."""

LONGEST = 600 * SECOND
"""Maximum duration of a capture."""

MOST_BYTES = 64 << 20
"""Maximum size of one capture in bytes."""


class Capture(msgspec.Struct, frozen=True, kw_only=True):
    """A capture, stored beside the output of its attempt: the `name` of its file, its size in bytes, and its time, in
    seconds since 1970.
    """

    name: str
    task: str
    epoch: int
    kind: CaptureKind
    size: int
    at: float


class CaptureStarted(msgspec.Struct, frozen=True, tag="started", tag_field="kind"):
    """A capture starts on this node."""

    node: str


class CaptureEnded(msgspec.Struct, frozen=True, tag="ended", tag_field="kind"):
    """The capture was stored, or failed with an error."""

    capture: Capture | None = None
    error: ErrorRecord | None = None


CaptureLine = CaptureStarted | CaptureEnded
