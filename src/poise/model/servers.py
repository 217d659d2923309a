"""How fast a replica answers in a world that is tried out: tables of what was measured, and nothing else.

A request is so many *steps* (tokens that are written, or one batch), of which those at once on one device are done
together: `step` says what one takes with so many at once. What is read before, `prompt` tokens, is done by itself and
takes what so many tokens take. Between the sizes of a table it is read off a line, and beyond them off the line of the
last two, or in proportion where there is one.

>>> speed = Speed(step=((1, 10.0), (4, 16.0)))
>>> speed.steps_take(2), speed.steps_take(8), speed.steps_take(1, 2.5)
(12.0, 24.0, 25.0)
"""

from collections.abc import Sequence

import msgspec

Table = tuple[tuple[int, float], ...]
"""Sizes, rising, and the nanoseconds that each takes."""


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """Where a speed is measured: rows of a file in the form of Splitwise's `perf_model.csv`, of one `model` on so many
    `devices` of one kind of `hardware`.
    """

    file: str
    model: str
    hardware: str
    devices: int


class Speed(msgspec.Struct, frozen=True, kw_only=True):
    """Nanoseconds. `tokens`: a step writes one token of each answer; else a request is one step, times its size."""

    step: Table = ()
    prompt: Table = ()
    tokens: bool = False
    measured: Measured | None = None

    def steps(self, size: float, tokens: int) -> float:
        """How many a request has."""
        return float(max(1, tokens)) if self.tokens else size

    def steps_take(self, at_once: int, steps: float = 1.0) -> float:
        """What so many steps take with so many requests at once."""
        return steps * read_off(self.step, at_once)

    def batch_takes(self, asked: Sequence[tuple[float, int, int]], padded: int) -> float:
        """What a batch of requests (size, prompt and tokens of each) takes that was filled up to so many: until the
        longest answer is written, or as long as their mean size.
        """
        steps = [self.steps(size, tokens) for size, _, tokens in asked]
        longest = max(steps) if self.tokens else sum(steps) / len(steps)
        return self.reading_takes(sum(prompt for _, prompt, _ in asked)) + self.steps_take(padded, longest)

    def reading_takes(self, tokens: int) -> float:
        """What is done before the first step."""
        return read_off(self.prompt, tokens) if self.prompt and tokens else 0.0


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """A replica that can be had. `price` an hour. `slots`: an upstream does so many requests at once and lets the
    others wait, 0 for as many as it is sent.
    """

    name: str
    speed: Speed
    price: float = 0.0
    slots: int = 0


class HangUp(msgspec.Struct, frozen=True, kw_only=True):
    """A `share` of those who ask do not wait any longer `after` so many nanoseconds."""

    share: float
    after: int


class Serving(msgspec.Struct, frozen=True, kw_only=True):
    """What answers requests. A replica serves `start` nanoseconds after it was asked for. `spread`: standard deviation
    of what a batch takes, as a part of its mean.
    """

    servers: tuple[Server, ...]
    start: int = 0
    spread: float = 0.0
    hang_up: HangUp | None = None


def read_off(table: Table, at: int) -> float:
    """What so many take, by a table with at least one size."""
    low, least = table[0]
    if at <= low:
        return least
    for high, most in table[1:]:
        if at <= high:
            return least + (most - least) * (at - low) / (high - low)
        before, low, least = (low, least), high, most
    if len(table) == 1:
        return least * at / low
    return least + max(0.0, least - before[1]) / (low - before[0]) * (at - low)


__all__ = ["HangUp", "Measured", "Server", "Serving", "Speed", "Table", "read_off"]
