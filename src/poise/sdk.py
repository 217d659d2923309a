"""Functions as work: `@poise.task`, futures, `map`, graphs and gangs of them.

    import poise

    @poise.task(gpu=1, memory="8GiB")
    def train(seed): ...

    best = max(train.map(range(100)))               # in order, in chunks
    future = train.submit(7)                        # a concurrent.futures.Future, and awaitable
    report = summarise.submit(future)               # runs once `future` is done, with its result

*Warm workers* run the calls of a task. They are processes that Poise schedules like other work; they keep loaded
modules and data, and exit when idle. All tasks of a program with the same options share a job and its workers. Each
call is logged when it is accepted and when it has returned, so a killed worker, agent or control plane loses none. A
call may then run twice: its effects outside the program must allow that.

Nothing needs to be started first.
"""

import atexit
import collections
import contextlib
import functools
import itertools
import os
import secrets
import shutil
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any, Generic, ParamSpec, TypeVar, overload

import msgspec

from poise.calls import ATOMS, Calls, Future
from poise.client import Client, current_home
from poise.config import Home
from poise.control.start import ensure_up, kept_environment, user_name
from poise.decoding import msgpack_decoder
from poise.drivers import functions, tidy, values
from poise.drivers.screen import Progress, Screen
from poise.errors import CallFailed, CallLost, Conflict
from poise.model.calls import MAX_NEEDS, Result
from poise.model.fields import declared
from poise.model.job_fields import JobSpec, ResourcesSpec
from poise.units import parse_cpu

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

CHUNK_SECONDS = 0.05
"""Target duration of a chunk of `map`: long compared with the cost of a call, short enough to wait for."""

MOST_IN_A_CHUNK = 100_000
PIECES_AHEAD = 32
MOST_WORKERS = 256

_encode = msgspec.msgpack.Encoder().encode


# --- tasks -----------------------------------------------------------------------------------------------------------


class Task(Generic[P, R]):
    """A function that can also be submitted to Poise; `poise.task` creates it. A direct call runs the function in this
    process.
    """

    def __init__(self, function: Callable[P, R], options: Mapping[str, Any], home: Home | None = None) -> None:
        functools.update_wrapper(self, function)
        self.__qualname__: str = function.__qualname__
        self.__poise_function__ = function
        self._options = dict(options)
        self._home = home
        with contextlib.suppress(AttributeError):  # now: the file may change before the first call
            function.__poise_source__ = functions.source_of(function)  # type: ignore[attr-defined]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.__poise_function__(*args, **kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __repr__(self) -> str:
        return f"<poise.Task {self.__qualname__}>"

    def options(self, **options: Any) -> "Task[P, R]":
        """Return the same task with other options: `train.options(gpu=2).submit(7)`. The options are those of
        `poise.task`.

        Raises CallFailed if an option is unknown or out of range.
        """
        return Task(self.__poise_function__, self._options | _checked(options), self._home)

    def using(self, client: Client) -> "Task[P, R]":
        """Return the same task, which submits its calls to the control plane of this client."""
        return Task(self.__poise_function__, self._options, client.home)

    def submit(self, *args: Any, **kwargs: Any) -> Future[R]:
        """Submit a call and return its future. Futures among the arguments, also in lists, tuples and dictionaries, are
        replaced by their results.

        Raises Conflict if the control plane belongs to another user or machine.
        """
        return self._submit("call", list(args), kwargs)

    def map(
        self, items: Iterable[Any], *more: Iterable[Any], chunk: int | None = None, progress: bool = False
    ) -> "Mapped[R]":
        """Call the function with each item (or with one item of each iterable), and return an iterator over the
        results, in order.

        Items are grouped into chunks of about `CHUNK_SECONDS` (50 ms) of measured run time; `chunk` sets a fixed number
        of items. Items are read only when needed, so the input may be infinite. `progress` shows a progress bar.
        Iterate with `for` or `async for`.

        Raises CallFailed if `chunk` is below 1.
        """
        if chunk is not None and chunk < 1:
            raise CallFailed("a chunk has at least one item", field="chunk", have=str(chunk), hint="chunk=1")
        source: Iterable[Any] = zip(items, *more, strict=False) if more else items
        return Mapped(self, source, star=bool(more), chunk=chunk, progress=progress)

    def _submit(self, kind: str, positional: list[Any], named: dict[str, Any]) -> Future[Any]:
        function, options = self.__poise_function__, self._options
        home, arguments = self._home or _home_now(), [kind, positional, named]
        if home.elsewhere is not None:
            raise Conflict(
                "functions need your own control plane, because their values are files in its home",
                field=home.elsewhere_by,
                have=str(home.elsewhere),
                hint=f"`unset {home.elsewhere_by}`, or `poise submit`",
            )
        future: Future[Any] = Future(function.__qualname__)
        if options.get("workers", 1) != 1:
            _when_done(_futures_in(arguments), future, lambda: _submit_gang(home, function, options, arguments, future))
            return future
        calls = _calls_for(home, options)

        def submit() -> None:
            name, retries = future.name, options.get("retries", 0)
            calls.submit(function, name, arguments, retries=retries, future=future)

        others = list(dict.fromkeys(_futures_in(arguments)))
        if len(others) <= MAX_NEEDS:  # the job itself waits for calls of the same job
            others = [of for of in others if of._calls is not calls or not of.number]
        _when_done(others, future, submit)
        return future


_OPTIONS = {name for name, of in declared(ResourcesSpec).items() if of.field.python}
_OF_JOBS = {of.attribute: of for of in declared(JobSpec).values() if of.field.python}
_ONLY_OF_JOBS = {of.attribute for of in declared(JobSpec).values()} - _OF_JOBS.keys()
_PER_CALL = ("time_limit", "hang")
_OTHERS = _OF_JOBS.keys() | {"retries", "most"}


@overload
def task(function: Callable[P, R], /) -> Task[P, R]: ...
@overload
def task(**options: Any) -> Callable[[Callable[P, R]], Task[P, R]]: ...
def task(function: Callable[P, R] | None = None, /, **options: Any) -> Any:
    """Make a function a task.

    `cpu`, `memory`, `gpu`, `gpu_memory`, `gpu_share`, `gpu_kind`, `gpu_model`, `backend`, `precision`, `ops` and
    `network` are the requirements of one call; `node`, `exclude_node` and `label` select its nodes. `spread` and
    `together` select on which values of a label the members of a gang run. `priority`, `weight`, `env` and `name` are
    as in a job file; `secrets` are variables with their values, which are encrypted in the log. `retries` is how often
    a call that raises is repeated; a call whose worker dies is always repeated. `most` is the maximum number of
    workers. `workers=4` makes each call a gang: four processes start together and run the function; the result is the
    list of their results, by `poise.rank()`.

    `time_limit` is the maximum duration of one call, or of one item of a `map`; `hang` is its maximum time without
    `poise.step()`. A call that exceeds either is stopped and raises `CallLost`. `notify` and `notify_on` apply to the
    job of the task, which ends with the program.
    """
    _checked(options)
    if function is not None:
        return Task(function, options)
    return lambda wrapped: Task(wrapped, options)


def rank() -> int:
    """Return the rank of this process in its gang, from 0; 0 outside gangs."""
    return int(os.environ.get("POISE_RANK", 0))


def world_size() -> int:
    """Return the number of members of the gang of this process; 1 outside gangs."""
    return int(os.environ.get("POISE_WORLD_SIZE", 1))


def gather(futures: Iterable[Future[T]]) -> list[T]:
    """Wait for all futures and return their results, in order. Raises the exception of the first failed call."""
    return [future.result() for future in list(futures)]


def _checked(options: dict[str, Any]) -> dict[str, Any]:
    import difflib

    for name in options:
        if name not in _OPTIONS | _OTHERS:
            if name in _ONLY_OF_JOBS:
                raise CallFailed(
                    f"`{name}` is a field of jobs, not of tasks", field=name, hint="`poise.Client().submit`"
                )
            near = difflib.get_close_matches(name, _OPTIONS | _OTHERS, n=1)
            known = ", ".join(sorted(_OPTIONS | _OTHERS))
            value = "…" if near == ["secrets"] else repr(options[name])
            hint = f"{near[0]}={value}" if near else f"one of {known}"
            raise CallFailed(f"a task has no option `{name}`", field=name, hint=hint)
    for name, least, most in (("retries", 0, 1000), ("most", 1, MOST_WORKERS)):
        value = options.get(name, least)
        if type(value) is not int or not least <= value <= most:
            need, have = f"a whole number from {least} to {most}", repr(value)
            raise CallFailed(f"`{name}` is out of range", field=name, need=need, have=have, hint=f"{name}=2")
    _limits(options)
    return options


def _limits(options: Mapping[str, Any]) -> list[int]:
    """Return the time limit of a call and its limit without progress, in nanoseconds; 0: none."""
    reads = ((name, _OF_JOBS[name].field.read) for name in _PER_CALL)
    return [read(options.get(name, 0), name) for name, read in reads if read is not None]


def _job_spec(options: Mapping[str, Any]) -> dict[str, Any]:
    own = sorted(_OF_JOBS.keys() - {"env", "workers", *_PER_CALL})
    spec: dict[str, Any] = {_OF_JOBS[name].name: options[name] for name in own if name in options}
    path = os.pathsep.join(dict.fromkeys(str(Path(entry or ".").resolve()) for entry in sys.path))
    spec["folder"] = str(Path.cwd())
    spec["env"] = kept_environment() | {"PYTHONPATH": path} | options.get("env", {})
    spec["resources"] = {name: options[name] for name in sorted(_OPTIONS) if name in options}
    return spec


def _futures_in(part: Any) -> Iterator[Future[Any]]:
    """Yield the futures in arguments: direct, or in lists, tuples and the values of dictionaries."""
    kind = type(part)
    if isinstance(part, Future):
        yield part
    elif kind is list or kind is tuple or kind is dict:
        for item in part.values() if kind is dict else part:
            if type(item) not in ATOMS:
                yield from _futures_in(item)


_held_up: dict[Future[Any], None] = {}
"""Calls that wait here for results of other jobs; they are submitted before the program ends."""


def _when_done(others: Iterable[Future[Any]], future: Future[Any], submit: Callable[[], object]) -> None:
    """Call `submit` once these futures are done: at once, or on the thread that gets the last result."""
    waiting = {other for other in others if not other.done()}
    if not waiting:
        submit()
        return
    _held_up[future] = None

    def submit_or_not() -> None:
        if not future.cancelled():
            submit()

    left = len(waiting)
    lock = threading.Lock()

    def one_less(_: object) -> None:
        nonlocal left
        with lock:
            left -= 1
        if not left:
            try:
                submit_or_not()
            except Exception as error:
                future.set_exception(error)
            finally:
                _held_up.pop(future, None)

    for other in waiting:
        other.add_done_callback(one_less)


def _home_now() -> Home:
    return _home_at(*map(os.environ.get, ("POISE_HOME", "POISE_SOCKET", "POISE_ADDRESS")))


@functools.cache
def _home_at(*_: str | None) -> Home:
    """Return the home that the environment selects; cached, because every call needs it."""
    return current_home()


_all_calls: dict[tuple[Home, str, int], Calls] = {}
_making = threading.Lock()


def _calls_for(home: Home, options: Mapping[str, Any]) -> Calls:
    """Return the calls of tasks with these options, which share workers; `retries` may differ between calls."""
    own = [(name, value) for name, value in options.items() if name != "retries"]
    key = (home, repr(sorted(own)) if own else "", os.getpid())
    found = _all_calls.get(key)
    if found is None or found.closed:
        with _making:
            found = _all_calls.get(key)
            if found is None or found.closed:
                spec = _job_spec(options)
                limits = _limits(options)
                spec["run"] = [sys.executable, "-m", "poise.agent.worker", *(map(str, limits) if any(limits) else ())]
                spec["calls"] = True
                spec["parts"] = options.get("most") or _default_most(home, options)
                spec["retry"] = {
                    "limit": 3,
                    "backoff": "0.1s",
                    "when": ["lost", "killed", "failed", "signal", "oom"],
                }
                found = _all_calls[key] = Calls(home, spec)
    return found


def _default_most(home: Home, options: Mapping[str, Any]) -> int:
    """Return how many workers fit on the empty fleet, from 1 to `MOST_WORKERS`."""
    nodes = ensure_up(home, "--until-idle").nodes()
    devices, cpus = options.get("gpu", 0), parse_cpu(options.get("cpu", 1))
    if devices:
        fits = sum(len(node.devices) // devices for node in nodes)
    else:
        fits = sum(node.cpu // cpus for node in nodes) if cpus else MOST_WORKERS
    return max(1, min(MOST_WORKERS, fits or (os.cpu_count() or 1)))


def close() -> None:
    """Announce that no more calls will come. This happens automatically at the end of the program. Calls that wait for
    the results of other jobs are submitted first, and submitted calls still run.
    """
    while _held_up and getattr(sys, "last_type", None) is not KeyboardInterrupt:
        time.sleep(0.005)
    for (_, _, process), calls in list(_all_calls.items()):
        if process == os.getpid():  # else this process is a fork of their program
            calls.close()
    _all_calls.clear()


atexit.register(close)


# --- map -------------------------------------------------------------------------------------------------------------


class Mapped(Generic[R]):
    """An iterator over the results of a `map`, in the order of the items. Use it once, with `for` or `async for`.

    The first chunks start at once. At most `PIECES_AHEAD` (32) chunks run ahead of the consumed results.
    """

    def __init__(
        self, task: Task[..., R], items: Iterable[Any], *, star: bool, chunk: int | None, progress: bool
    ) -> None:
        self._task = task
        self._items = iter(items)
        self._total = len(items) if isinstance(items, Sized) else None
        self._kind = "star" if star else "map"
        self._fixed = chunk
        self._size = chunk or 1
        self._pieces: collections.deque[tuple[Future[list[R]], int]] = collections.deque()
        self._ready: collections.deque[R] = collections.deque()
        self._seconds = 0.0
        self._measured = 0
        self.done = 0
        self._bar: _Bar | _Shown | None = None
        if progress:
            self._bar = _Shown(self) if "ipykernel" in sys.modules else _Bar(task.__qualname__, self._total)
        self._fill()

    def __iter__(self) -> Iterator[R]:
        return self

    def __next__(self) -> R:
        if not self._ready:
            self._fill()
            if not self._pieces:
                self._finish()
                raise StopIteration
            piece, size = self._pieces.popleft()
            try:
                self._open(piece.result(), piece, size)
            except Exception as error:
                self._fail(error)
        return self._ready.popleft()

    def __aiter__(self) -> AsyncIterator[R]:
        return self

    async def __anext__(self) -> R:
        if not self._ready:
            self._fill()
            if not self._pieces:
                self._finish()
                raise StopAsyncIteration
            piece, size = self._pieces.popleft()
            try:
                self._open(await piece, piece, size)
            except Exception as error:
                self._fail(error)
        return self._ready.popleft()

    def _fail(self, error: Exception) -> None:
        """Return the results before the failed item first, then raise the error."""
        before = error.__dict__.pop(functions.BEFORE, None)
        if not before:
            raise error
        self._ready.extend(before)
        self.done += len(before)
        failed: Future[list[R]] = Future(self._task.__qualname__)
        failed.set_exception(error)
        self._pieces.appendleft((failed, 0))

    def cancel(self) -> None:
        """Stop reading items, and cancel the chunks that have not started."""
        self._items = iter(())
        for piece, _ in self._pieces:
            piece.cancel()
        self._pieces.clear()

    def __repr__(self) -> str:
        total = "" if self._total is None else f" of {self._total}"
        return f"<poise.Mapped {self._task.__qualname__} {self.done}{total} done>"

    def _repr_html_(self) -> str:
        bar = "" if self._total is None else f' <progress value="{self.done}" max="{self._total}"></progress>'
        return f"<code>{self._task.__qualname__}</code> {self.done}{bar}"

    def _open(self, results: list[R], piece: Future[Any], size: int) -> None:
        self._ready.extend(results)
        self.done += size
        self._seconds, self._measured = self._seconds + piece.seconds, self._measured + size
        if not self._fixed:
            wanted = int(CHUNK_SECONDS * self._measured / max(self._seconds, 1e-9))
            self._size = max(1, min(MOST_IN_A_CHUNK, wanted, 8 * max(size, self._size)))
        if self._bar is not None:
            self._bar.at(self.done)

    def _fill(self) -> None:
        """Keep enough chunks submitted that no worker is idle."""
        while len(self._pieces) < PIECES_AHEAD:
            piece = list(itertools.islice(self._items, self._size))
            if not piece:
                return
            self._pieces.append((self._task._submit(self._kind, piece, {}), len(piece)))

    def _finish(self) -> None:
        if self._bar is not None:
            self._bar.close()


class _Shown:
    """Progress in a notebook: the `_repr_html_` of the `Mapped`, updated while it runs."""

    def __init__(self, mapped: "Mapped[Any]") -> None:
        from IPython.display import display  # type: ignore[import-not-found]

        self._mapped = mapped
        self._handle = display(mapped, display_id=True)
        self._at = 0.0

    def at(self, done: int) -> None:
        if time.monotonic() - self._at > 0.1:
            self.close()

    def close(self) -> None:
        self._at = time.monotonic()
        self._handle.update(self._mapped)


class _Bar:
    """Progress on stderr: a bar in a terminal, nothing elsewhere."""

    def __init__(self, name: str, total: int | None) -> None:
        self._progress = Progress(Screen(sys.stderr), [name]) if sys.stderr.isatty() else None
        self._total = total

    def at(self, done: int) -> None:
        if self._progress is not None:
            self._progress.at(0, done, self._total)

    def close(self) -> None:
        if self._progress is not None:
            self._progress.draw()


# --- gangs -----------------------------------------------------------------------------------------------------------


def _submit_gang(
    home: Home, function: Callable[..., Any], options: Mapping[str, Any], arguments: Sequence[Any], future: Future[Any]
) -> None:
    """Submit a gang as a separate job: its members start together, call the function and end."""
    folder = home.values / f"{tidy.GANGS}{secrets.token_hex(8)}"
    folder.mkdir(mode=0o700, parents=True)
    given = _resolved(list(arguments))
    told = functions.reference(function, folder)
    (folder / "call").write_bytes(_encode((told, values.encode(given, folder))))
    spec = _job_spec(options)
    spec["run"] = [sys.executable, "-m", "poise.agent.worker", "--gang", str(folder)]
    spec["workers"] = options["workers"]
    spec |= {_OF_JOBS[name].name: options[name] for name in _PER_CALL if name in options}
    when = ["lost", "killed", "failed"] if "retries" in options else ["lost", "killed"]
    spec["retry"] = {"limit": options.get("retries", 3), "when": when}
    client = ensure_up(home, "--until-idle")
    try:
        job = client.submit(spec, user=user_name())
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    future.set_running_or_notify_cancel()

    def follow() -> None:
        try:
            report = client.wait(job)
            results = [
                msgpack_decoder(Result).decode((folder / f"{member}.out").read_bytes())
                for member in range(len(report.tasks))
                if (folder / f"{member}.out").exists()
            ]
            raised = next((result for result in results if result.outcome == "raised"), None)
            if raised is not None:
                raise functions.decode_failure(raised.value)
            if report.exit_code != 0:
                raise CallLost(f"{function.__qualname__}: {job} {report.status}", hint=f"`poise logs {job}`")
            future.set_result([values.decode(result.value) for result in results])
        except BaseException as error:
            future.set_exception(error)
        finally:
            client.close()
            shutil.rmtree(folder, ignore_errors=True)

    threading.Thread(target=follow, name=f"poise-{job}", daemon=True).start()


def _resolved(part: Any) -> Any:
    if isinstance(part, Future):
        return part.result()
    if type(part) in (list, tuple):
        return type(part)(_resolved(item) for item in part)
    if type(part) is dict:
        return {key: _resolved(item) for key, item in part.items()}
    return part
