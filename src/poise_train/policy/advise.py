"""Which exchange a gang should use: the time of a step with each, foreseen from what the job was seen to do.

What was seen: how long a step takes without its exchange and when the parts of the gradient become ready, what each
exchange sends and what it costs to make and to read it, how long it took when it was tried between two steps, what
collectives cost on the link, and how much of the communication was in fact hidden behind backward. With none of it
hidden a step takes `T_none`, which is what it takes without exchange and what the trial took; with all of it hidden
that can be (`poise_train.policy.communication`) `T_full`. Of plain gradients the step was measured as well, so

    overlap = (T_none - T_measured) / (T_none - T_full),      T = T_none - overlap (T_none - T_full)

for all others. The quickest is recommended if it saves enough to be worth gradients that are no longer exact. What
changes the training itself, more local steps or a larger effective batch, is foreseen too, and never chosen.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from poise_train.policy.communication import Link, Message, exposed, given_out, seconds

WORTH = 0.05
"""The part of a step that must be saved for gradients that are not exact."""

LOCAL_STEPS = (4, 16)
ACCUMULATIONS = (2, 4)
BUCKETS = (1 << 20, 25 << 20)
"""Alternatives of which it is said what they would bring: steps between two averages, times as many samples in a step,
and bytes of a bucket."""

AVERAGED = 2
"""Tensors that local SGD averages for each weight: itself and its momentum."""


class Candidate(NamedTuple):
    """An exchange: the messages that go out during backward, as large as they are, those after it, and the seconds that
    it takes to make them (for each of the former) and to read them. `tried`: all of it, when nothing else was done; 0
    if it was not tried.
    """

    name: str
    during: tuple[Message, ...]
    making: tuple[float, ...]
    after: tuple[Message, ...] = ()
    reading: float = 0.0
    tried: float = 0.0


class Seen(NamedTuple):
    """What a job was seen to do in a step, in seconds: all but the exchange (`compute`), until backward had ended
    (`ends`), all of it with plain gradients (`plain`).
    """

    workers: int
    compute: float
    ends: float
    plain: float
    link: Link


class Alternative(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One way to train: foreseen seconds of a step (for the same samples), bytes that each worker gives out in it.
    `changes` says what it changes in the training itself; empty: nothing but rounding and order.
    """

    name: str
    seconds: float
    sent: int
    changes: str = ""


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """What is recommended, why in one sentence, and all that was considered, the quickest first. `overlap` is the part
    of what could be hidden behind backward that was.
    """

    choice: str
    reason: str
    overlap: float
    alternatives: tuple[Alternative, ...]


def advise(seen: Seen, candidates: Sequence[Candidate]) -> Advice:
    """Of these, the first of which are plain gradients."""
    plain = candidates[0]
    full, none = _bounds(seen, plain)
    overlap = min(1.0, max(0.0, (none - seen.plain) / (none - full))) if none > full else 1.0

    def foreseen(candidate: Candidate) -> float:
        best, worst = _bounds(seen, candidate)
        return worst - overlap * (worst - best)

    exchanges = [Alternative(name=one.name, seconds=foreseen(one), sent=_sent(one, seen.workers)) for one in candidates]
    exact, quickest = exchanges[0], min(exchanges, key=lambda one: one.seconds)
    choice = quickest if quickest.seconds <= (1 - WORTH) * exact.seconds else exact
    others = _others(seen, plain, exact, foreseen)
    waits = exact.seconds - seen.compute
    part = f"{100 * waits / exact.seconds:.0f} % of a step waits for gradients"
    if choice is exact:
        reason = f"{part}; no other saves {100 * WORTH:.0f} %"
    else:
        saved = 100 * (1 - choice.seconds / exact.seconds)
        reason = (
            f"{part}; {choice.name} saves {saved:.0f} % of it all, and sends {choice.sent:,} of {exact.sent:,} bytes"
        )
    ranked = tuple(sorted((*exchanges, *others), key=lambda one: (one.seconds, one.name)))
    return Advice(choice=choice.name, reason=reason, overlap=overlap, alternatives=ranked)


def _bounds(seen: Seen, one: Candidate) -> tuple[float, float]:
    """A step with all communication hidden that can be, and with none."""
    extra, shifted = 0.0, []
    for message, making in zip(one.during, one.making, strict=True):
        extra += making  # it is backward that makes them, and so all that comes after is later
        shifted.append(message._replace(ready=message.ready + extra))
    last = sum(seconds(message.pattern, message.size, seen.workers, seen.link) for message in one.after)
    whole = sum(seconds(message.pattern, message.size, seen.workers, seen.link) for message in one.during)
    alone = one.tried or extra + whole + last + one.reading
    hidden = whole - exposed(shifted, seen.ends + extra, seen.workers, seen.link)
    return seen.compute + max(0.0, alone - hidden), seen.compute + alone


def _sent(one: Candidate, workers: int) -> int:
    return round(sum(given_out(message.pattern, message.size, workers) for message in (*one.during, *one.after)))


def _others(
    seen: Seen, plain: Candidate, exact: Alternative, foreseen: Callable[[Candidate], float]
) -> list[Alternative]:
    """What is told and not chosen."""
    whole = sum(seconds(message.pattern, message.size, seen.workers, seen.link) for message in plain.during)
    found = [
        Alternative(
            name=f"local {steps}",
            seconds=seen.compute + AVERAGED * whole / steps,
            sent=AVERAGED * exact.sent // steps,
            changes=f"weights are averaged every {steps} steps",
        )
        for steps in LOCAL_STEPS
    ]
    found += [
        Alternative(
            name=f"accumulation {times}",
            seconds=seen.compute + (exact.seconds - seen.compute) / times,
            sent=exact.sent // times,
            changes=f"an effective batch {times} times as large",
        )
        for times in ACCUMULATIONS
    ]
    for limit in BUCKETS:
        joined = _joined(plain, limit)
        found.append(Alternative(name=f"buckets of {limit >> 20} MiB", seconds=foreseen(joined), sent=exact.sent))
    return found


def _joined(plain: Candidate, limit: int) -> Candidate:
    """The same in larger buckets: each is ready when its last part is."""
    found: list[Message] = []
    for one in plain.during:
        if found and found[-1].size + one.size <= limit:
            found[-1] = Message(one.ready, found[-1].size + one.size)
        else:
            found.append(one)
    return plain._replace(during=tuple(found), making=(0.0,) * len(found))


__all__ = ["WORTH", "Advice", "Alternative", "Candidate", "Seen", "advise"]
