"""Calls of functions, and the messages about them between a caller, the control plane and a worker.

A job that serves calls has *workers*: its units, started as calls come and idle when there are none. Its job accepts a
call under a number that its caller counts from 1; the call is handed to one worker, and returns once. Values are opaque
to everybody but the caller's process and its workers.

The two channels (`/v1/calls` for callers, `/v1/workers` for workers) are level-triggered: a client first sends its
state on each connection, and receives what it has missed.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Literal, TypeVar

import msgspec

from poise.model.messages import Attempt

T = TypeVar("T")

INLINE = 4096
"""Maximum bytes of a value inside a record; larger values are files."""

MAX_UNRETURNED = 16_384
"""Maximum number of accepted and unreturned calls of one job; a caller waits before it sends more."""

MAX_FRAME = 2**20
"""Maximum bytes of one frame of a caller or a worker. Frames are decoded on the deciding thread (another one would hold
the interpreter for as long), so their size is limited before and their items are counted: the worst frame takes some
milliseconds.
"""

MAX_TOGETHER = 512
"""Maximum number of calls, functions or results in one frame."""

KEPT = 2 * MAX_UNRETURNED
"""Number of results that a job keeps for a disconnected caller: more than can be in flight to a connected one."""

MAX_NEEDS = 1024
"""Maximum number of earlier calls whose results one call takes."""

_AROUND, _LETTER = 16, 4
"""Maximum bytes of a call's number with its framing, and of one character."""

MAX_FUNCTIONS = 10_000
"""Maximum number of functions of one job; a caller that defines them in a loop reaches it."""

ATTEMPT = "Poise-Attempt"
"""The header with a worker's attempt: `j1.main#1`."""

CallOutcome = Literal["done", "raised", "lost", "skipped", "cancelled"]
"""How a call returned.

`done` with a value · `raised` with the user's exception · `lost` its workers died until its retries were used up ·
`skipped` it takes the result of a call that is not done · `cancelled` before it began.
"""


class Value(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """A value as its owner encoded it: inline, or in a file of `size` bytes."""

    encoding: str = ""
    data: bytes = b""
    file: str = ""
    size: int = 0


NOTHING = Value()


class Function(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """Where a worker finds a function: its module (or the script that was `__main__`), its qualified name, and the hash
    of its source, so that a worker never runs another version. A function without a module is an opaque value in
    `code`.
    """

    name: str
    module: str = ""
    script: str = ""
    source: str = ""
    code: Value = NOTHING


class Call(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """One call: the number of its function in the job, the arguments, the numbers of the earlier calls whose results
    they take, and the number of retries after an exception.
    """

    number: int
    function: int
    arguments: Value
    needs: Annotated[tuple[int, ...], msgspec.Meta(max_length=MAX_NEEDS)] = ()
    retries: int = 0


class Result(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """Result of a call: the value or the exception; `run` is the time in the function in nanoseconds."""

    number: int
    outcome: CallOutcome
    value: Value = NOTHING
    run: int = 0
    note: str = ""


# caller -> control plane


class Resume(msgspec.Struct, frozen=True, tag="resume"):
    """First frame of a caller: its job, the calls without a result so far, and the `key` that the submitter of the job
    received.
    """

    job: str
    unreturned: Annotated[tuple[int, ...], msgspec.Meta(max_length=MAX_UNRETURNED)] = ()
    key: str = ""


class Calling(msgspec.Struct, frozen=True, tag="call", omit_defaults=True):
    """New functions and new calls, each in order. Items that were accepted before are not accepted again."""

    functions: Annotated[tuple[Function, ...], msgspec.Meta(max_length=MAX_TOGETHER)] = ()
    calls: Annotated[tuple[Call, ...], msgspec.Meta(max_length=MAX_TOGETHER)] = ()
    first_function: int = 0


class Uncall(msgspec.Struct, frozen=True, tag="uncall"):
    """Do not begin these calls."""

    numbers: Annotated[tuple[int, ...], msgspec.Meta(max_length=MAX_UNRETURNED)]


class Closing(msgspec.Struct, frozen=True, tag="closing"):
    """The caller sends no more calls."""


# control plane -> caller


class Accepted(msgspec.Struct, frozen=True, tag="accepted"):
    """Durably accepted so far: the last call, and the number of functions. Answers `Resume` and each `Calling`."""

    last: int
    functions: int


class Results(msgspec.Struct, frozen=True, tag="results"):
    results: tuple[Result, ...]


class Over(msgspec.Struct, frozen=True, tag="over"):
    """The job has ended or accepts no calls; `why` is the reason."""

    why: str


# worker -> control plane


class Ready(msgspec.Struct, frozen=True, tag="ready", omit_defaults=True):
    """First frame of a worker: its attempt, the number of functions it knows, the calls it holds, and results that may
    not have arrived; if there are too many of these, the remaining calls are listed as held, and their results follow.
    """

    attempt: Attempt
    functions: int = 0
    held: Annotated[tuple[int, ...], msgspec.Meta(max_length=MAX_UNRETURNED)] = ()
    results: Annotated[tuple[Result, ...], msgspec.Meta(max_length=MAX_UNRETURNED)] = ()


class Returning(msgspec.Struct, frozen=True, tag="return", omit_defaults=True):
    """Results, and calls handed back before they began. A worker that is `ending` accepts no more calls."""

    results: Annotated[tuple[Result, ...], msgspec.Meta(max_length=MAX_UNRETURNED)] = ()
    back: Annotated[tuple[int, ...], msgspec.Meta(max_length=MAX_UNRETURNED)] = ()
    ending: bool = False


# control plane -> worker


class Input(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The result of an earlier call, as input of a call."""

    number: int
    value: Value


class Todo(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """A call to make, and its inputs."""

    number: int
    function: int
    arguments: Value
    inputs: tuple[Input, ...] = ()


class Work(msgspec.Struct, frozen=True, tag="work", omit_defaults=True):
    """Functions that are new to this worker, and calls to make, each in order."""

    functions: tuple[Function, ...] = ()
    calls: tuple[Todo, ...] = ()


class Known(msgspec.Struct, frozen=True, tag="known"):
    """These results are durable and need not be sent again."""

    numbers: tuple[int, ...]


class Back(msgspec.Struct, frozen=True, tag="back"):
    """Hand these calls back if they have not begun."""

    numbers: tuple[int, ...]


class Retire(msgspec.Struct, frozen=True, tag="retire"):
    """There is no more work for this worker: end."""


def calling(functions: Sequence[Function], first: int, calls: Sequence[Call]) -> Iterator[Calling]:
    """Yield frames within the limits: first the new functions, of which the first has the index `first`, then the new
    calls.
    """
    for some in _together(functions, _size_of_function):
        yield Calling(some, (), first)
        first += len(some)
    for few in _together(calls, lambda call: _size(call.arguments) + _AROUND * len(call.needs)):
        yield Calling((), few)


def returning(results: Sequence[Result]) -> Iterator[Returning]:
    """Yield results in frames within the limits."""
    for some in _together(results, lambda result: _size(result.value) + _LETTER * len(result.note)):
        yield Returning(some)


def _size(value: Value) -> int:
    return _AROUND + len(value.data) + _LETTER * len(value.file)


def _size_of_function(of: Function) -> int:
    return _size(of.code) + _LETTER * sum(map(len, (of.name, of.module, of.script, of.source)))


def _together(items: Sequence[T], size_of: Callable[[T], int]) -> Iterator[tuple[T, ...]]:
    """Yield items in order, as many at a time as fit in one frame; half of it is left for framing."""
    some: list[T] = []
    room = MAX_FRAME // 2
    for item in items:
        size = size_of(item)
        if some and (len(some) == MAX_TOGETHER or size > room):
            yield tuple(some)
            some, room = [], MAX_FRAME // 2
        some.append(item)
        room -= size
    if some:
        yield tuple(some)


FromCaller = Resume | Calling | Uncall | Closing
ToCaller = Accepted | Results | Over
FromWorker = Ready | Returning
ToWorker = Work | Known | Back | Retire
