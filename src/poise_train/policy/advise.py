"""Recommends a gradient exchange for a gang: predicts the step time with each from measurements of the job.

The measurements: the duration of a step without its exchange, the times at which parts of the gradient become ready,
the messages of each exchange and the cost of encoding and decoding them, the duration of a trial between two steps, the
cost of collectives on the link, and the overlap of communication with backward. Without any overlap a step takes
`T_none`, the sum of its time without exchange and of the trial; with the maximum overlap
(`poise_train.policy.communication`) it takes `T_full`. The step with plain gradients is measured as well, so

    overlap = (T_none - T_measured) / (T_none - T_full),      T = T_none - overlap (T_none - T_full)

for all others. The fastest is recommended if it saves enough to justify inexact gradients. Alternatives that change the
training itself, more local steps or a larger effective batch, are predicted too, but never recommended.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from poise_train.policy.communication import Link, Message, exposed, given_out, seconds

WORTH = 0.05
"""Minimum saving, as a fraction of a step, that justifies inexact gradients."""

LOCAL_STEPS = (4, 16)
ACCUMULATIONS = (2, 4)
BUCKETS = (1 << 20, 25 << 20)
"""Alternatives whose effect is predicted: steps between two averages, factors of the samples in a step, and bytes of a
bucket."""

AVERAGED = 2
"""Tensors that local SGD averages per weight: the weight and its momentum."""


class Candidate(NamedTuple):
    """An exchange: its messages `during` backward, with their actual sizes, and `after` it. `making`: seconds to encode
    each message during backward. `reading`: seconds to decode them. `tried`: seconds of the whole exchange in a trial
    without other work; 0 if it was not tried.
    """

    name: str
    during: tuple[Message, ...]
    making: tuple[float, ...]
    after: tuple[Message, ...] = ()
    reading: float = 0.0
    tried: float = 0.0


class Seen(NamedTuple):
    """Measured times of a job's step, in seconds: without the exchange (`compute`), until the end of backward
    (`ends`), and the whole step with plain gradients (`plain`).
    """

    workers: int
    compute: float
    ends: float
    plain: float
    link: Link


class Alternative(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One way to train: predicted seconds of a step (for the same samples), and the bytes that each worker sends in it.
    `changes` describes changes of the training itself; empty: nothing but rounding and order.
    """

    name: str
    seconds: float
    sent: int
    changes: str = ""


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """The recommendation, its reason in one sentence, and all alternatives, fastest first. `overlap` is the fraction of
    the maximum overlap with backward that was achieved.
    """

    choice: str
    reason: str
    overlap: float
    alternatives: tuple[Alternative, ...]


def advise(seen: Seen, candidates: Sequence[Candidate]) -> Advice:
    """Recommend one of the candidates; the first one is plain gradients."""
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
    """Return the duration of a step with the maximum overlap of communication, and without any."""
    extra, shifted = 0.0, []
    for message, making in zip(one.during, one.making, strict=True):
        extra += making  # encoding delays backward, and so everything after it
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
    """Return the alternatives that are reported but never recommended."""
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
    """Return the candidate with larger buckets; each is ready when its last part is."""
    found: list[Message] = []
    for one in plain.during:
        if found and found[-1].size + one.size <= limit:
            found[-1] = Message(one.ready, found[-1].size + one.size)
        else:
            found.append(one)
    return plain._replace(during=tuple(found), making=(0.0,) * len(found))


__all__ = ["WORTH", "Advice", "Alternative", "Candidate", "Seen", "advise"]
