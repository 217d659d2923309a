"""Calls of functions, and what a caller, the control plane and a worker say to each other about them.

A job that serves calls has *workers*: its units, started as calls come and resting when there are none. A call is
accepted by its job under a number that its caller counts from 1, is handed to one of the workers, and returns once.
Values are opaque to everybody but the caller's process and its workers.

The two channels (`/v1/calls` for callers, `/v1/workers` for workers) are level-triggered: whoever connects says first
what it has, and is told what it has missed.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Literal, TypeVar

import msgspec

from poise.model.messages import Attempt

T = TypeVar("T")

INLINE = 4096
"""Bytes of a value that travel inside records; larger ones are files."""

MAX_UNRETURNED = 16_384
"""Calls of one job that have been accepted and not returned; a caller waits before it sends more."""

MAX_FRAME = 2**20
"""Bytes of one frame of a caller or a worker. It is decoded on the thread that decides (another one would hold the
interpreter for as long), so it is bounded before, and what it holds is counted: the worst takes some milliseconds."""

MAX_TOGETHER = 512
"""Calls, functions or results that travel in one frame."""

KEPT = 2 * MAX_UNRETURNED
"""Results that a job keeps for a caller that was away. More than can be under way to one that is not."""

MAX_NEEDS = 1024
"""Earlier calls whose results one call takes."""

_AROUND, _LETTER = 16, 4
"""Bytes that the number of a call takes at most, with what is around it; and that a letter does."""

MAX_FUNCTIONS = 10_000
"""Functions of one job; a caller that defines them in a loop meets it."""

ATTEMPT = "Poise-Attempt"
"""The header by which a worker says which attempt it is: `j1.main#1`."""

CallOutcome = Literal["done", "raised", "lost", "skipped", "cancelled"]
"""How a call returned.

`done` with a value · `raised` with the user's exception · `lost` its workers died as often as it may be tried ·
`skipped` it takes the result of one that is not done · `cancelled` before it began.
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
    of its source, so that a worker never runs another. One that has no module is an opaque value in `code`.
    """

    name: str
    module: str = ""
    script: str = ""
    source: str = ""
    code: Value = NOTHING


class Call(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """One call: the number of the function in its job, the arguments, the numbers of earlier calls whose results they
    take, and how often it is tried again when it raises.
    """

    number: int
    function: int
    arguments: Value
    needs: Annotated[tuple[int, ...], msgspec.Meta(max_length=MAX_NEEDS)] = ()
    retries: int = 0


class Result(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """How a call returned: the value, or the exception; `run` nanoseconds in the function."""

    number: int
    outcome: CallOutcome
    value: Value = NOTHING
    run: int = 0
    note: str = ""


# caller -> control plane


class Resume(msgspec.Struct, frozen=True, tag="resume"):
    """First frame of a caller: its job, the calls of which it has no result yet, and the `key` that whoever submitted
    the job was given.
    """

    job: str
    unreturned: Annotated[tuple[int, ...], msgspec.Meta(max_length=MAX_UNRETURNED)] = ()
    key: str = ""


class Calling(msgspec.Struct, frozen=True, tag="call", omit_defaults=True):
    """New functions, in order, and new calls, in order. One that has been accepted before is not accepted again."""

    functions: Annotated[tuple[Function, ...], msgspec.Meta(max_length=MAX_TOGETHER)] = ()
    calls: Annotated[tuple[Call, ...], msgspec.Meta(max_length=MAX_TOGETHER)] = ()
    first_function: int = 0


class Uncall(msgspec.Struct, frozen=True, tag="uncall"):
    """Do not begin these."""

    numbers: Annotated[tuple[int, ...], msgspec.Meta(max_length=MAX_UNRETURNED)]


class Closing(msgspec.Struct, frozen=True, tag="closing"):
    """No more calls will come."""


# control plane -> caller


class Accepted(msgspec.Struct, frozen=True, tag="accepted"):
    """What has been accepted durably: the last call, and how many functions. Answers `Resume` and each `Calling`."""

    last: int
    functions: int


class Results(msgspec.Struct, frozen=True, tag="results"):
    results: tuple[Result, ...]


class Over(msgspec.Struct, frozen=True, tag="over"):
    """The job has ended, or takes no calls: why."""

    why: str


# worker -> control plane


class Ready(msgspec.Struct, frozen=True, tag="ready", omit_defaults=True):
    """First frame of a worker: its attempt, how many functions it knows, the calls it holds, and results that may not
    have arrived; if there are too many of these, the calls of the others are among those that it holds, and their
    results follow.
    """

    attempt: Attempt
    functions: int = 0
    held: Annotated[tuple[int, ...], msgspec.Meta(max_length=MAX_UNRETURNED)] = ()
    results: Annotated[tuple[Result, ...], msgspec.Meta(max_length=MAX_UNRETURNED)] = ()


class Returning(msgspec.Struct, frozen=True, tag="return", omit_defaults=True):
    """Results, and calls handed back that had not begun. A worker that is `ending` takes no more calls."""

    results: Annotated[tuple[Result, ...], msgspec.Meta(max_length=MAX_UNRETURNED)] = ()
    back: Annotated[tuple[int, ...], msgspec.Meta(max_length=MAX_UNRETURNED)] = ()
    ending: bool = False


# control plane -> worker


class Input(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The result of an earlier call that a call takes."""

    number: int
    value: Value


class Todo(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """A call to make, and what it takes."""

    number: int
    function: int
    arguments: Value
    inputs: tuple[Input, ...] = ()


class Work(msgspec.Struct, frozen=True, tag="work", omit_defaults=True):
    """Functions that this worker does not know yet, in order, and calls to make, in order."""

    functions: tuple[Function, ...] = ()
    calls: tuple[Todo, ...] = ()


class Known(msgspec.Struct, frozen=True, tag="known"):
    """These results are durable; they need not be said again."""

    numbers: tuple[int, ...]


class Back(msgspec.Struct, frozen=True, tag="back"):
    """Hand these back if they have not begun."""

    numbers: tuple[int, ...]


class Retire(msgspec.Struct, frozen=True, tag="retire"):
    """Nothing to do here any more: end."""


def calling(functions: Sequence[Function], first: int, calls: Sequence[Call]) -> Iterator[Calling]:
    """What is to be said of new functions, of which the first has this index, and then of new calls: in frames that the
    other side takes.
    """
    for some in _together(functions, _size_of_function):
        yield Calling(some, (), first)
        first += len(some)
    for few in _together(calls, lambda call: _size(call.arguments) + _AROUND * len(call.needs)):
        yield Calling((), few)


def returning(results: Sequence[Result]) -> Iterator[Returning]:
    """Results, in frames that the other side takes."""
    for some in _together(results, lambda result: _size(result.value) + _LETTER * len(result.note)):
        yield Returning(some)


def _size(value: Value) -> int:
    return _AROUND + len(value.data) + _LETTER * len(value.file)


def _size_of_function(of: Function) -> int:
    return _size(of.code) + _LETTER * sum(map(len, (of.name, of.module, of.script, of.source)))


def _together(items: Sequence[T], size_of: Callable[[T], int]) -> Iterator[tuple[T, ...]]:
    """In order, as many at a time as one frame has room for; half of it is left for what is around them."""
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
