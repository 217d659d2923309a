"""Speed of a simulated replica, from tables of measurements only.

A request takes a number of *steps* (tokens to write, or one batch); concurrent steps on one device are done together:
`step` has the duration of one step by the number of concurrent ones. The prompt is processed separately: `prompt` has
the duration by the number of tokens. Values between the sizes of a table are interpolated linearly; beyond them the
line of the last two sizes is extended, or the single size is scaled proportionally.

>>> speed = Speed(step=((1, 10.0), (4, 16.0)))
>>> speed.steps_take(2), speed.steps_take(8), speed.steps_take(1, 2.5)
(12.0, 24.0, 25.0)
"""

from collections.abc import Sequence

import msgspec

Table = tuple[tuple[int, float], ...]
"""Sizes in ascending order, with the nanoseconds that each takes."""


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """Source of a measured speed: rows of a file in the form of Splitwise's `perf_model.csv`, for one `model` on this
    number of `devices` of one kind of `hardware`.
    """

    file: str
    model: str
    hardware: str
    devices: int


class Speed(msgspec.Struct, frozen=True, kw_only=True):
    """Durations in nanoseconds. `tokens`: a step writes one token of each answer; else a request is one step, times its
    size.
    """

    step: Table = ()
    prompt: Table = ()
    tokens: bool = False
    measured: Measured | None = None

    def steps(self, size: float, tokens: int) -> float:
        """Return the number of steps of a request."""
        return float(max(1, tokens)) if self.tokens else size

    def steps_take(self, at_once: int, steps: float = 1.0) -> float:
        """Return the duration of `steps` steps with `at_once` concurrent requests."""
        return steps * read_off(self.step, at_once)

    def batch_takes(self, asked: Sequence[tuple[float, int, int]], padded: int) -> float:
        """Return the duration of a batch of requests (size, prompt and tokens of each), padded to `padded`: until the
        longest answer is written, or for their mean size.
        """
        steps = [self.steps(size, tokens) for size, _, tokens in asked]
        longest = max(steps) if self.tokens else sum(steps) / len(steps)
        return self.reading_takes(sum(prompt for _, prompt, _ in asked)) + self.steps_take(padded, longest)

    def reading_takes(self, tokens: int) -> float:
        """Return the duration of processing the prompt."""
        return read_off(self.prompt, tokens) if self.prompt and tokens else 0.0


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """An available replica. `price` per hour. `slots`: maximum concurrent requests of an upstream, which queues the
    others; 0 for no limit. `cache`: tokens of earlier prompts that it keeps, so that they are not read again.
    """

    name: str
    speed: Speed
    price: float = 0.0
    slots: int = 0
    cache: int = 0


class HangUp(msgspec.Struct, frozen=True, kw_only=True):
    """A `share` of the clients disconnects `after` this many nanoseconds."""

    share: float
    after: int


class Serving(msgspec.Struct, frozen=True, kw_only=True):
    """The servers of requests. A replica serves `start` nanoseconds after its request. `spread`: standard deviation of
    batch durations, relative to their mean.
    """

    servers: tuple[Server, ...]
    start: int = 0
    spread: float = 0.0
    hang_up: HangUp | None = None


def read_off(table: Table, at: int) -> float:
    """Interpolate in a table with at least one size."""
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
