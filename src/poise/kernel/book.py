"""The calls of one job: part of the ledger's state, changed by events only.

A call is *open* from its acceptance until it returns. The latest results are stored, for a caller that was away and for
calls that take them.
"""

from copy import copy

import msgspec

from poise.model.calls import KEPT, Call, Function, Result

LEFT = "its caller has left"
"""Reason that closed a job that serves calls: its caller closed it, or did not come back."""

KEPT_WHEN_OVER = 1000


class CallBook(msgspec.Struct):
    """The calls of a job. `done` and `failed` count all returned calls; `run` is the total time in completed functions,
    in nanoseconds. `tries` counts failed attempts of open calls. `called_up` workers are pending or active.

    The keys of calls are their numbers as texts, because the canonical encoding allows only strings as keys.
    """

    functions: list[Function] = []
    open: dict[str, Call] = {}
    tries: dict[str, int] = {}
    results: list[Result] = []
    last: int = 0
    done: int = 0
    failed: int = 0
    run: int = 0
    called_up: int = 0
    closed: str = ""

    @property
    def over(self) -> bool:
        """Whether no call is open and none will come."""
        return bool(self.closed) and not self.open

    @property
    def mean(self) -> int:
        """Mean time in completed functions, in nanoseconds; 0 if there is none."""
        return self.run // self.done if self.done else 0

    def restore_order(self) -> None:
        """Restore the order of acceptance, which the encoding does not preserve."""
        self.open = dict(sorted(self.open.items(), key=_by_number))

    def fork(self) -> "CallBook":
        """Return an independent copy."""
        made = copy(self)
        made.functions, made.results = self.functions.copy(), self.results.copy()
        made.open, made.tries = self.open.copy(), self.tries.copy()
        return made

    def accept(self, call: Call) -> None:
        self.open[str(call.number)] = call
        self.last = call.number

    def forget(self) -> None:
        """Drop results when the job is over. Some stay for a caller that was away when its job ended."""
        self.results = self.results[-KEPT_WHEN_OVER:] if self.closed != LEFT else []

    def close(self, result: Result) -> None:
        """Record the result of a call. The oldest results that no open call takes are dropped, in batches because of
        the copy.
        """
        key = str(result.number)
        del self.open[key]
        if self.tries:
            self.tries.pop(key, None)
        self.results.append(result)
        if len(self.results) > KEPT + KEPT // 4:
            taken = {need for call in self.open.values() for need in call.needs}
            older = self.results[:-KEPT]
            self.results = [kept for kept in older if kept.number in taken] + self.results[-KEPT:]
        if result.outcome == "done":
            self.done += 1
            self.run += result.run
        else:
            self.failed += 1


def _by_number(entry: tuple[str, Call]) -> int:
    return entry[1].number
