"""Captures: what a running task was doing for some seconds, as a profiler saw it."""

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
"""How the file of a capture ends: a page for a browser, a text, a trace that Perfetto and Chrome open."""

LASTS: dict[CaptureKind, int] = {"stacks": 10 * SECOND, "dump": 0, "torch": 2 * SECOND}
"""Nanoseconds that a capture takes unless something else is said; a trace of PyTorch has a MB and more a second."""

LONGEST = 600 * SECOND
"""The longest that a capture may take."""

MOST_BYTES = 64 << 20
"""Bytes of one capture."""


class Capture(msgspec.Struct, frozen=True, kw_only=True):
    """A capture that is kept beside the output of its attempt: the `name` of its file, its size in bytes, and when it
    was taken, in seconds since 1970.
    """

    name: str
    task: str
    epoch: int
    kind: CaptureKind
    size: int
    at: float


class CaptureStarted(msgspec.Struct, frozen=True, tag="started", tag_field="kind"):
    """A capture begins on this node."""

    node: str


class CaptureEnded(msgspec.Struct, frozen=True, tag="ended", tag_field="kind"):
    """It is kept, or there is none because of an error."""

    capture: Capture | None = None
    error: ErrorRecord | None = None


CaptureLine = CaptureStarted | CaptureEnded
