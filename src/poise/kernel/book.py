"""The calls of one job, as the ledger keeps them: part of its state, changed by events only.

A call is *open* from when it was accepted until it returns. Of what has returned the latest results are kept, for a
caller that was away and for calls that take them.
"""

from copy import copy

import msgspec

from poise.model.calls import KEPT, Call, Function, Result

LEFT = "its caller has left"
"""Why a job that serves calls was closed by its caller, or for want of one."""

KEPT_WHEN_OVER = 1000


class CallBook(msgspec.Struct):
    """`done` and `failed` count all calls that returned ever; `run` is the time in functions that are done, in
    nanoseconds; `tries` how often an open call began for nothing. `called_up` workers run, or wait to be placed.

    Calls are kept under their numbers as texts: the canonical encoding knows no other keys.
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
        """Nothing is open, and nothing more will come."""
        return bool(self.closed) and not self.open

    @property
    def mean(self) -> int:
        """Mean time in a function that is done, in nanoseconds; 0 while none is."""
        return self.run // self.done if self.done else 0

    def restore_order(self) -> None:
        """Back into the order of acceptance, which the encoding does not keep."""
        self.open = dict(sorted(self.open.items(), key=_by_number))

    def fork(self) -> "CallBook":
        """A copy that changes by itself."""
        made = copy(self)
        made.functions, made.results = self.functions.copy(), self.results.copy()
        made.open, made.tries = self.open.copy(), self.tries.copy()
        return made

    def accept(self, call: Call) -> None:
        self.open[str(call.number)] = call
        self.last = call.number

    def forget(self) -> None:
        """The job is over. A few results stay for a caller that was away when it was ended for it."""
        self.results = self.results[-KEPT_WHEN_OVER:] if self.closed != LEFT else []

    def close(self, result: Result) -> None:
        """A call has returned. The oldest results that no open call takes make room; in batches, since that costs a
        copy.
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
