"""Asks a service several things as one request: all at one instant, so that they are batched together. If one fails, or
the client disconnects, the others are cancelled.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TypeVar

from poise_serve.kernel.batcher import Refuse
from poise_serve.service import ANYBODY, Asked, Asker, Service
from poise_serve.wire import Answer

T = TypeVar("T")


async def ask_each(
    asked: Asked,
    versions: Iterable[Service],
    bodies: Sequence[bytes],
    take: Callable[[int, Answer | Refuse], T],
    patience: int = 0,
    deferred: bool = False,
    asker: Asker = ANYBODY,
) -> list[T]:
    """Ask each body of `asked`, whose requests go to these `versions`, and return the answers in their order, as `take`
    makes them. `patience`: nanoseconds, 0 for that of the service. Raises the first exception of `take`.
    """
    whole: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    parts: dict[int, T] = {}
    numbers: list[int] = []

    def told(place: int, answer: Answer | Refuse) -> None:
        if whole.done():
            return
        try:
            parts[place] = take(place, answer)
        except Exception as error:
            whole.set_exception(error)
            return
        if len(parts) == len(bodies):
            whole.set_result(None)

    try:
        with ExitStack() as stack:
            for version in versions:
                stack.enter_context(version.together())
            try:
                for place, body in enumerate(bodies):
                    numbers.append(asked.ask(body, partial(told, place), patience, deferred, asker))
                    if whole.done():
                        whole.result()  # refused at once
            except BaseException:
                _cancel(asked, numbers)
                raise
        await whole
        return [parts[place] for place in range(len(bodies))]
    finally:
        _cancel(asked, numbers)


def _cancel(asked: Asked, numbers: Sequence[int]) -> None:
    for number in numbers:
        asked.cancel(number)


__all__ = ["ask_each"]
