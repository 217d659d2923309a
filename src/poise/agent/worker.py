"""`python -m poise.agent.worker`: a worker of calls. It runs in the user's interpreter, as a task like any other.

It connects to the control plane, receives calls, makes them one after the other in its main thread (where signal
handlers and devices expect to be used) and returns their results. Another thread listens, so that the worker can hand
back calls that have not started while a long call runs. It keeps results until they are durable, and sends them again
after a reconnection.

It ends with exit code 0 on `Retire`, or on SIGTERM once the current call has returned.
"""

import contextlib
import itertools
import os
import queue
import reprlib
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from websockets.exceptions import WebSocketException
from websockets.sync.client import ClientConnection

from poise.config import Home
from poise.decoding import msgpack_decoder
from poise.drivers import functions, values
from poise.drivers.reach import channel_to, environment_home
from poise.errors import CallLost, PoiseError
from poise.model.calls import (
    ATTEMPT,
    Back,
    FromWorker,
    Function,
    Known,
    Ready,
    Result,
    Retire,
    Returning,
    Todo,
    ToWorker,
    Value,
    Work,
    returning,
)
from poise.model.messages import Attempt
from poise.units import SECOND, format_duration

FLUSH_SECONDS = 0.002
"""Results of short calls are sent together, at most this late while others follow."""

BACKSTOP_SECONDS = 0.01
"""A result is sent at most this late while the next call runs."""

ALONE_SECONDS = 300.0
"""An idle worker ends after this long without a control plane."""

LINGER_SECONDS = 5.0
LOOK_SECONDS = (0.01, 1.0)
"""Minimum and maximum pause between two checks of a call with a time limit; otherwise 1/20 of the limit."""

RECONNECT_SECONDS = (0.05, 1.0)

_decode: msgspec.msgpack.Decoder[ToWorker] = msgpack_decoder(ToWorker)
_encode = msgspec.msgpack.Encoder().encode
_END = -1


class Started(NamedTuple):
    """A call, or an item of a `map` piece, that started at `at` (monotonic, ns); `before` are the piece's earlier
    results."""

    at: int
    item: Any = None
    before: list[Any] | None = None


class Worker:
    """`turn` makes calls in the main thread; `listen` runs in another thread. `watch` ends a call that takes longer
    than `time_limit`, or longer than `hang` without progress (nanoseconds; 0: no limit).
    """

    def __init__(self, home: Home, attempt: Attempt, key: str, time_limit: int = 0, hang: int = 0) -> None:
        self._home = home
        self._attempt = attempt
        self._key = key
        self._folder = home.values / attempt.task.partition(".")[0]
        self._inbox: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._todo: dict[int, Todo] = {}
        self._making = 0
        self._functions: list[Function] = []
        self._loaded: dict[int, Callable[..., Any]] = {}
        self._unsent: list[Result] = []
        self._unsent_since = 0.0
        self._unknown: dict[int, Result] = {}
        self._channel: ClientConnection | None = None
        self._sending = threading.Lock()
        self._late = threading.Event()
        self._ending = False
        self._time_limit, self._hang = time_limit, hang
        self._started = Started(0)
        self._deciding = threading.Lock()  # decides how a call ended; `watch` holds it until the process exits

    # --- making calls ------------------------------------------------------------------------------------------------

    def turn(self) -> None:
        """Make calls until the worker has to end."""
        clock = time.perf_counter_ns
        while not self._ending:
            if self._unsent and self._inbox.empty():
                self._flush()
            number = self._inbox.get()
            todo = self._todo.pop(number, None)
            if todo is None:
                continue  # it was handed back, or the worker ends
            if self._time_limit or self._hang:
                self._start()  # time counts from here while its function is loaded
            self._making = number
            began = clock()
            try:
                value = self._call(todo)
                result = Result(number, "done", values.encode(value, self._folder), clock() - began)
            except BaseException as error:
                note = functions.readable(f"{type(error).__qualname__}: {functions.message_of(error)}"[:500])
                failure = functions.encode_failure(error, self._folder)
                result = Result(number, "raised", failure, clock() - began, note)
            with self._deciding:
                self._unknown[number] = result
                self._making = 0
            self._keep(result)
        self._hand_back(list(self._todo))
        self._flush()

    def _call(self, todo: Todo) -> Any:
        function = self._loaded.get(todo.function)
        if function is None:
            function = self._loaded[todo.function] = functions.load(self._functions[todo.function])
        arguments = values.decode(todo.arguments)
        if todo.inputs:
            inputs = {given.number: values.decode(given.value) for given in todo.inputs}
            arguments = [_filled(part, inputs) for part in arguments]
        return _made(function, arguments, self._start if self._time_limit or self._hang else None)

    def _start(self, item: Any = None, before: list[Any] | None = None) -> None:
        self._started = Started(time.monotonic_ns(), item, before)

    def watch(self) -> None:
        """Fail a call that takes too long, and exit: nothing else stops its code. It has its own thread."""
        progress = self._folder / f"{self._attempt}.progress"
        if self._hang:
            progress.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.environ["POISE_PROGRESS"] = str(progress)
        least, most = LOOK_SECONDS
        pause = max(least, min(most, min(filter(None, (self._time_limit, self._hang))) / 20 / SECOND))
        written, stepped = 0, 0
        while True:
            time.sleep(pause)
            number, started, now = self._making, self._started, time.monotonic_ns()
            with contextlib.suppress(FileNotFoundError):
                latest = progress.stat().st_mtime_ns
                if latest != written:
                    written, stepped = latest, now
            what = ""
            if self._time_limit and now - started.at > self._time_limit:
                what = f"the call ran longer than its time limit of {format_duration(self._time_limit)}"
            elif self._hang and now - max(started.at, stepped) > self._hang:
                what = f"the call made no progress for {format_duration(self._hang)}"
            if not (number and what):
                continue
            error = CallLost(what, hint=f"`poise logs {self._attempt.task}`")
            if started.before is not None:
                error.add_note(functions.readable(f"in the item {reprlib.repr(started.item)}"))
                error.__dict__[functions.BEFORE] = list(started.before)
            self._deciding.acquire()
            if number == self._making and started is self._started:
                progress.unlink(missing_ok=True)
                self._give_up(Result(number, "raised", functions.encode_failure(error, self._folder), note=what))
            self._deciding.release()

    def _give_up(self, result: Result) -> None:
        """Exit while a call runs, once the control plane has its result or `LINGER_SECONDS` have passed."""
        self._ending = True
        self._unknown[result.number] = result
        back = tuple(self._todo)
        self._todo.clear()
        self._flush()
        self._say(Returning((result,), back, ending=True))
        last = time.monotonic() + LINGER_SECONDS
        while result.number in self._unknown and time.monotonic() < last:
            time.sleep(BACKSTOP_SECONDS)
        os._exit(0)

    def _keep(self, result: Result) -> None:
        if not self._unsent:
            self._unsent_since = time.perf_counter()
        self._unsent.append(result)
        if time.perf_counter() - self._unsent_since > FLUSH_SECONDS:
            self._flush()
        elif len(self._unsent) == 1:
            self._late.set()

    def _flush(self) -> None:
        with self._sending:
            results, self._unsent = tuple(self._unsent), []
        for message in returning(results):
            self._say(message)

    def flush_late(self) -> None:
        """Send results while a long call runs. It has its own thread."""
        while True:
            self._late.wait()
            self._late.clear()
            time.sleep(BACKSTOP_SECONDS)
            self._flush()

    # --- the other side ----------------------------------------------------------------------------------------------

    def listen(self) -> None:
        """Connect to the control plane, and reconnect until the worker ends."""
        pause, alone_since = RECONNECT_SECONDS[0], time.monotonic()
        turns = itertools.count()
        while not self._ending:
            with (
                contextlib.suppress(OSError, WebSocketException, EOFError, PoiseError),
                channel_to(
                    self._home, "/v1/workers", self._key, next(turns), {ATTEMPT: str(self._attempt)}
                ) as connection,
            ):
                pause = RECONNECT_SECONDS[0]
                self._session(connection)
            if self._channel is not None:
                self._channel, alone_since = None, time.monotonic()
            if time.monotonic() - alone_since > ALONE_SECONDS and not self._todo and not self._making:
                self.end()
            time.sleep(pause)
            pause = min(RECONNECT_SECONDS[1], pause * 2)

    def _session(self, channel: ClientConnection) -> None:
        first, *later = (*returning(tuple(self._unknown.values())), Returning())
        follow = (result.number for message in later for result in message.results)
        held = (*([self._making] if self._making else []), *self._todo, *follow)
        channel.send(_encode(Ready(self._attempt, len(self._functions), held, first.results)))
        self._channel = channel
        for more in later:
            self._say(more)
        self._flush()
        for frame in channel:
            message = _decode.decode(frame if isinstance(frame, bytes) else frame.encode())
            if isinstance(message, Work):
                self._functions.extend(message.functions)
                for todo in message.calls:
                    self._todo[todo.number] = todo
                    self._inbox.put(todo.number)
            elif isinstance(message, Known):
                for number in message.numbers:
                    self._unknown.pop(number, None)
            elif isinstance(message, Back):
                self._hand_back(message.numbers)
            elif isinstance(message, Retire):
                self.end()

    def _hand_back(self, numbers: Any) -> None:
        back = tuple(number for number in numbers if self._todo.pop(number, None) is not None)
        if back:
            self._say(Returning(back=back))

    def _say(self, message: FromWorker) -> None:
        """Send a message; after a lost connection, `_session` sends its content again."""
        channel = self._channel
        if channel is not None:
            with contextlib.suppress(OSError, WebSocketException):
                channel.send(_encode(message))

    def end(self) -> None:
        self._ending = True
        self._inbox.put(_END)


def _made(function: Callable[..., Any], arguments: Any, start: Callable[..., None] | None = None) -> Any:
    """Make a call, or a piece of a `map`: call the function with each item, or (`star`) with each item's elements as
    arguments. `start` is called before each call.
    """
    kind, positional, named = arguments
    if kind == "call":
        if start is not None:
            start()
        return function(*positional, **named)
    results: list[Any] = []
    for item in positional:
        if start is not None:
            start(item, results)
        try:
            results.append(function(*item) if kind == "star" else function(item))
        except Exception as error:
            error.add_note(functions.readable(f"in the item {reprlib.repr(item)}"))
            error.__dict__[functions.BEFORE] = results
            raise
    return results


def _gang(folder: Path) -> int:
    """Make the call of one member of a gang, and write its result to the gang's folder."""
    told, arguments = msgpack_decoder(tuple[Function, Value]).decode((folder / "call").read_bytes())
    try:
        made = _made(functions.load(told), values.decode(arguments))
        result = Result(0, "done", values.encode(made, folder))
    except BaseException as error:
        result = Result(0, "raised", functions.encode_failure(error, folder))
    draft = folder / f"{os.environ['POISE_RANK']}.new"
    draft.write_bytes(_encode(result))
    draft.rename(draft.with_suffix(".out"))
    return 0 if result.outcome == "done" else 1


def _filled(part: Any, inputs: dict[int, Any]) -> Any:
    """Return the arguments with results in place of earlier calls."""
    if isinstance(part, values.Placeholder):
        return inputs[part.number]
    if type(part) in (list, tuple):
        return type(part)(_filled(item, inputs) for item in part)
    if type(part) is dict:
        return {key: _filled(item, inputs) for key, item in part.items()}
    return part


def main() -> int:
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    if sys.argv[1:2] == ["--gang"]:
        return _gang(Path(sys.argv[2]))
    home = environment_home()
    attempt = Attempt(os.environ["POISE_TASK"], int(os.environ["POISE_EPOCH"]))
    limits = [int(limit) for limit in sys.argv[1:]]
    worker = Worker(home, attempt, os.environ.pop("POISE_WORKER_KEY"), *limits)
    signal.signal(signal.SIGTERM, lambda *_: worker.end())
    for target in (worker.listen, worker.flush_late, *([worker.watch] if any(limits) else [])):
        threading.Thread(target=target, daemon=True).start()
    worker.turn()
    sys.stdout.flush()
    return 0


def _leave(code: int) -> None:
    """Exit, even if a call has left threads behind that never end."""
    last = threading.Timer(LINGER_SECONDS, os._exit, (code,))
    last.daemon = True
    last.start()
    sys.exit(code)


if __name__ == "__main__":
    _leave(main())
