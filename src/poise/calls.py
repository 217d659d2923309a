"""The calls of a program to one job: futures, and the connection that sends calls and receives results.

Each job has two threads: one sends submitted calls, the other receives results. When a control plane restarts, the
connection is made again; calls that were not accepted durably are sent again, and missed results arrive.
"""

import asyncio
import collections
import concurrent.futures
import contextlib
import itertools
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from websockets.exceptions import WebSocketException
from websockets.sync.client import ClientConnection

from poise.config import Home
from poise.control.start import ensure_up, user_name
from poise.decoding import msgpack_decoder
from poise.drivers import functions, values
from poise.drivers.reach import channel_to
from poise.drivers.security import token_for
from poise.errors import CallFailed, CallLost, Conflict, PoiseError, Unreachable
from poise.model.calls import (
    MAX_FUNCTIONS,
    MAX_TOGETHER,
    MAX_UNRETURNED,
    NOTHING,
    Accepted,
    Call,
    Closing,
    FromCaller,
    Function,
    Over,
    Result,
    Results,
    Resume,
    ToCaller,
    Uncall,
    Value,
    calling,
)

R = TypeVar("R")

WINDOW = MAX_UNRETURNED // 2
"""Limit on calls that were sent and have not returned; more wait here."""

FLUSH_SECONDS = 0.001
"""Calls submitted within this time of each other are sent together."""

PATIENCE = 30.0

_decode: msgspec.msgpack.Decoder[ToCaller] = msgpack_decoder(ToCaller)
_encode = msgspec.msgpack.Encoder().encode

sys.modules.setdefault(values.SCRIPT, sys.modules["__main__"])  # workers pickle objects of the script under this name


class Future(concurrent.futures.Future[R]):
    """The result of a submitted call: a `concurrent.futures.Future` that can also be awaited.

    `result()` raises the function's own exception, with the worker's traceback as its cause; CallLost if its workers
    died repeatedly; and CancelledError if the call was cancelled. A future among the arguments of another call is
    replaced by its result.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.number = 0
        self.seconds = 0.0
        self._calls: Calls | None = None

    @property
    def id(self) -> str:
        """The id of the call, `job:number`; empty until it has been sent to a job."""
        return f"{self._calls.job}:{self.number}" if self._calls is not None and self._calls.job else ""

    @property
    def status(self) -> str:
        """The status of the call: `waiting`, `done`, `failed` or `cancelled`."""
        if not self.done():
            return "waiting"
        if self.cancelled():
            return "cancelled"
        return "failed" if self.exception() is not None else "done"

    def cancel(self) -> bool:
        """Try to cancel the call before it starts. Return True if it is certain not to start.

        Otherwise the call is cancelled only if no worker has started it, and continues if one has. `cancelled()` tells
        which, once the call is done.
        """
        if self._calls is not None and self.number and not self.done():
            return self._calls.cancel(self)
        before = self.cancelled()
        if not super().cancel():
            return False
        if not before:
            self.set_running_or_notify_cancel()  # wakes threads that wait for the result
        return True

    def __reduce__(self) -> Any:
        raise TypeError(
            "a poise.Future cannot be pickled: as an argument of a call it may stand alone, in lists, in tuples and "
            "among the values of dictionaries"
        )

    def __await__(self) -> Generator[Any, None, R]:
        return asyncio.wrap_future(self).__await__()

    def __repr__(self) -> str:
        return f"<poise.Future {self.name}{f' {self.id}' if self.id else ''} {self.status}>"

    def _repr_html_(self) -> str:
        from html import escape

        told = f"<code>{escape(self.name)}</code> {escape(self.id)} <b>{self.status}</b>"
        if self.status == "done":
            told += f" <pre>{escape(repr(self.result())[:2000])}</pre>"
        elif self.status == "failed":
            told += f" <pre>{escape(repr(self.exception()))}</pre>"
        return told


ATOMS = frozenset((type(None), bool, int, float, str, bytes))
"""Types whose values cannot contain futures."""


def _cancelled(future: Future[Any]) -> None:
    """Cancel the future and wake the threads that wait for it."""
    if concurrent.futures.Future.cancel(future):
        future.set_running_or_notify_cancel()


class _NotDone(Exception):
    """An argument is the future of a call that failed or was cancelled."""


class Calls:
    """The calls of one program to one job: the connection, the submitted calls and their results.

    The job is submitted at the first call.
    """

    def __init__(self, home: Home, spec: Mapping[str, Any]) -> None:
        self.job = ""
        self._key = ""
        self._home = home
        self._spec = dict(spec)
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._futures: dict[int, Future[Any]] = {}
        self._arguments: dict[int, Value] = {}
        self._uses: dict[int, int] = {}
        self._kept: dict[int, Value] = {}
        self._needs_of_unsent: dict[int, tuple[int, ...]] = {}
        self._unsent: collections.deque[Call] = collections.deque()
        self._sent: dict[int, Call] = {}
        self._functions: list[Function] = []
        self._indices: dict[Any, int] = {}
        self._told = 0
        self._accepted = 0
        self._news = threading.Event()
        self._room = threading.Condition(self._lock)
        self._channel: ClientConnection | None = None
        self._resumed = threading.Event()
        self._started = False
        self._closed = False
        self._failed: BaseException | None = None

    # --- submitting --------------------------------------------------------------------------------------------------

    def submit(
        self,
        function: Callable[..., Any],
        name: str,
        arguments: Sequence[Any],
        *,
        retries: int = 0,
        future: Future[Any] | None = None,
    ) -> Future[Any]:
        """Submit one call. Its arguments are encoded now, so they may be changed afterwards."""
        if not self._started:
            self._start()
        future = future or Future(name)
        needs: list[int] = []
        try:
            value = values.encode(self._without_futures(arguments, needs), self._folder)
        except BaseException as error:
            self._release(needs)
            if isinstance(error, _NotDone):
                future.set_exception(CallFailed(f"{name} was not called: {error}"))
                return future
            raise
        with self._lock:
            if self._failed is not None or self._closed:
                raise self._failed or Conflict("this connection is closed", hint="submit before the end of the program")
            index = self._indices.get(function)
            if index is None:
                if len(self._functions) >= MAX_FUNCTIONS:
                    raise CallFailed(
                        "one program submits too many functions",
                        need=f"at most {MAX_FUNCTIONS}",
                        hint="define a function once, and pass the differences as arguments",
                    )
                index = self._indices[function] = len(self._functions)
                self._functions.append(functions.reference(function, self._folder))
            number = future.number = next(self._numbers)
            future._calls = self
            self._futures[number] = future
            if needs:
                self._needs_of_unsent[number] = tuple(needs)
            if value.file:
                self._arguments[number] = value
            self._unsent.append(Call(number, index, value, tuple(needs), retries))
        if not self._news.is_set():
            self._news.set()
        return future

    def _without_futures(self, part: Any, needs: list[int]) -> Any:
        """Replace each future by its result, if that is here, or else by its call's number; such a result is kept until
        this call has returned.
        """
        kind = type(part)
        if isinstance(part, Future):
            with self._lock:
                open_here = part._calls is self and part.number in self._futures
                if open_here and part.number not in needs:
                    needs.append(part.number)
                    self._uses[part.number] = self._uses.get(part.number, 0) + 1
            if open_here:
                return values.Placeholder(part.number)
            if part.cancelled() or part.exception() is not None:
                raise _NotDone(f"{part.name} {part.status}")
            return part.result()
        if kind is list or kind is tuple:
            if any(type(item) not in ATOMS for item in part):
                return kind(self._without_futures(item, needs) for item in part)
        elif kind is dict and part:
            return {key: self._without_futures(item, needs) for key, item in part.items()}
        return part

    def _release(self, needs: Iterable[int]) -> None:
        """Release the results that a returned call used; discard the file of a result that no other call uses."""
        with self._lock:
            for need in needs:
                self._uses[need] -= 1
                if not self._uses[need]:
                    del self._uses[need]
                    values.discard(self._kept.pop(need, NOTHING))

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def _folder(self) -> Path:
        return self._home.values / (self.job or "new")

    def cancel(self, future: Future[Any]) -> bool:
        """Drop the call if it was not sent; otherwise ask the control plane to cancel it."""
        number = future.number
        with self._lock:
            unsent = number in self._futures and number not in self._sent
            needs = self._needs_of_unsent.pop(number, ()) if unsent else ()
            if unsent:
                del self._futures[number]
        if not unsent:
            self._say(Uncall((number,)))
            return future.cancelled()
        self._release(needs)
        values.discard(self._arguments.pop(number, NOTHING))
        _cancelled(future)
        return True

    # --- the connection ----------------------------------------------------------------------------------------------

    def _start(self) -> None:
        with self._lock:
            if self._started:
                return
            if functions.loading:
                raise CallFailed(
                    "a worker that loads this script would submit calls itself",
                    field=functions.loading[0],
                    hint='put the actions of a script under `if __name__ == "__main__":`',
                )
            client = ensure_up(self._home, "--until-idle")
            self.job, self._key = client.serve_calls(self._spec, user=user_name())
            client.close()
            self._started = True
        threading.Thread(target=self._listen, name="poise-results", daemon=True).start()
        threading.Thread(target=self._send, name="poise-calls", daemon=True).start()

    def _send(self) -> None:
        """Send submitted calls in batches, with at most `WINDOW` calls that have not returned."""
        while not self._closed:
            self._news.wait()
            time.sleep(FLUSH_SECONDS if len(self._unsent) < 64 else 0)
            self._news.clear()
            while self._unsent and not self._closed:
                self._resumed.wait()
                with self._lock:
                    while len(self._sent) >= WINDOW and not self._closed:
                        self._room.wait(1.0)
                    calls: list[Call] = []
                    while self._unsent and len(calls) < MAX_TOGETHER and len(self._sent) < WINDOW:
                        call = self._unsent.popleft()
                        self._needs_of_unsent.pop(call.number, None)
                        if call.number in self._futures:  # else it was cancelled
                            self._sent[call.number] = call
                            calls.append(call)
                    first, told = self._told, tuple(self._functions[self._told :])
                    self._told = len(self._functions)
                    for message in calling(told, first, calls):
                        self._say(message)

    def _say(self, message: FromCaller) -> None:
        """Send a message. If that fails, it is sent again after the next connection."""
        channel = self._channel
        if channel is not None:
            with contextlib.suppress(OSError, WebSocketException):
                channel.send(_encode(message))

    def _listen(self) -> None:
        """Connect, and reconnect when a control plane restarts; give up after `PATIENCE`."""
        lost_at = time.monotonic()
        turns = itertools.count()
        while not self._closed:
            try:
                with channel_to(self._home, "/v1/calls", token_for(self._home), next(turns)) as connection:
                    self._hear(connection)
                lost_at = time.monotonic()
            except (OSError, WebSocketException, EOFError) as error:
                if self._channel is not None:
                    lost_at = time.monotonic()
                elif time.monotonic() - lost_at > PATIENCE:
                    self._fail(Unreachable("no control plane answers", have=str(error), hint="`poise up`"))
            except PoiseError as error:
                self._fail(error)
            self._resumed.clear()
            self._channel = None
            time.sleep(0.05)

    def _hear(self, channel: ClientConnection) -> None:
        with self._lock:
            unreturned = tuple(self._sent)
        channel.send(_encode(Resume(self.job, unreturned, self._key)))
        for frame in channel:
            message = _decode.decode(frame if isinstance(frame, bytes) else frame.encode())
            if isinstance(message, Results):
                for result in message.results:
                    self._take(result)
                if self._unsent:
                    with self._lock:
                        self._room.notify()
            elif isinstance(message, Accepted):
                self._accepted = message.last
                if self._channel is not channel:
                    self._resume(channel, message)
            elif isinstance(message, Over):
                why = f"job {self.job} takes no calls any more: {message.why}"
                self._fail(CallLost(why, hint=f"`poise logs {self.job}`"), cancelled=message.why == "cancelled")
                return

    def _resume(self, channel: ClientConnection, resumed: Accepted) -> None:
        """Send again what was not accepted durably before the connection was lost."""
        with self._lock:
            again = tuple(call for call in self._sent.values() if call.number > resumed.last)
            told = tuple(self._functions[resumed.functions :])
            self._told = len(self._functions)
            self._channel = channel
            for message in calling(told, resumed.functions, again):
                self._say(message)
        self._resumed.set()

    def _take(self, result: Result) -> None:
        number = result.number
        with self._lock:
            future = self._futures.pop(number, None)
            call = self._sent.pop(number, None)
            if number in self._uses and result.value.file:
                self._kept[number] = result.value
        if call is not None and call.needs:
            self._release(call.needs)
        if self._arguments:
            used = self._arguments.pop(number, None)
            if used is not None:
                values.discard(used)
        if future is None or future.done():
            return
        future.seconds = result.run / 1e9
        try:
            if result.outcome == "done":
                future.set_result(values.decode(result.value))
            elif result.outcome == "raised":
                future.set_exception(functions.decode_failure(result.value))
            elif result.outcome == "cancelled":
                _cancelled(future)
            elif result.outcome == "skipped":
                future.set_exception(CallFailed(f"{future.name} was not called: {result.note}"))
            else:
                future.set_exception(CallLost(f"{future.name}: {result.note}", hint=f"`poise logs {self.job}`"))
        except BaseException as error:  # the value needs something that is missing here
            known = error if isinstance(error, Exception) else CallFailed(f"its result cannot be read: {error!r}")
            future.set_exception(known)
        if number not in self._kept:
            values.discard(result.value)

    def _fail(self, error: BaseException, *, cancelled: bool = False) -> None:
        """End all calls with this error: no results will come."""
        with self._lock:
            self._failed = self._failed or error
            self._closed = True
            left = list(self._futures.values())
            self._futures.clear()
            self._room.notify_all()
        for future in left:
            if cancelled and not future.done():
                _cancelled(future)
            elif not future.done():
                future.set_exception(error)

    def close(self) -> None:
        """Accept no more calls. Submitted calls still run, whether or not anybody waits for them."""
        if not self._started or self._closed:
            return
        deadline = time.monotonic() + PATIENCE
        while self._futures and self._accepted < max(self._futures, default=0) and time.monotonic() < deadline:
            time.sleep(0.002)
        self._say(Closing())
        self._closed = True
        self._news.set()
