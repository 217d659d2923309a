"""Loads for a simulated service: requests of a trace, from rates, or generated from a seed.

    conv.csv                                       requests as Azure, BurstGPT and Mooncake record them (`requests.py`)
    total_rate_10min.csv with the column m-large   requests per second by time window, as in ServeGen
    poisson:rate=50,requests=10000,variation=4     an open loop: 50 requests a second, at random
    clients:clients=12,think=400ms,requests=6000   a closed loop: each client sends again a think time after an answer

`variation` is the squared coefficient of variation of the sizes, which are log-normal with a mean of 1; 0 makes them
equal. Think times are exponential. For a trace, the number of prompt tokens is known on arrival; for the others, no
size is known. The same seed always gives the same requests.

Source of the rates: Xiang et al., "ServeGen", 2025, github.com/alibaba/ServeGen (Apache-2.0).
"""

from collections.abc import Callable, Iterator
from math import log, sqrt
from pathlib import Path
from random import Random
from typing import Any, Literal

import msgspec

from poise.decoding import convert
from poise.errors import SpecError
from poise.units import SECOND, parse_duration
from poise_lab.engine.serving import Clients, Load, Open, Request
from poise_lab.traces import requests
from poise_lab.traces.formats import format_of
from poise_lab.traces.options import Options
from poise_lab.traces.rows import BadRow, Tally, fault, header_of, short, table

FORMATS = ("azure", "burstgpt", "mooncake")
WINDOW = "window_start_s"
DRAWN = ("poisson", "clients")
MOST = 10_000_000
"""Maximum number of requests."""

MOST_CLIENTS = 100_000
MOST_RATE = 1e6


class Drawn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parameters of a generated load: `rate` is in requests a second, for an open loop; `clients` and `think` time are
    for a closed loop.
    """

    loop: Literal["poisson", "clients"]
    requests: int = 10_000
    rate: float = 10.0
    clients: int = 8
    think: str = "1s"
    variation: float = 0.0


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Selection from a trace: the first `requests` (0: all) that arrive in the first `until` nanoseconds (0: all), sped
    up by `load`. `column` selects a column of a file of rates.
    """

    requests: int = 0
    until: int = 0
    load: float = 1.0
    column: str = ""
    strict: bool = False


class Asking(msgspec.Struct, frozen=True, kw_only=True):
    """A load that can be started repeatedly, so that every trial gets the same requests. `about` describes it."""

    about: str
    begin: Callable[[], Load]
    skipped: dict[str, int] = {}


def asking(source: str, wanted: Wanted, seed: int) -> Asking:
    """Return the load that `source` describes. Raises `SpecError` and `NotFound`."""
    path = Path(source)
    if source.partition(":")[0] in DRAWN and not path.exists():
        drawn = parse(source)
        _only(wanted, "until", "`requests=` says how many are drawn", "poisson:rate=50,requests=10000")
        _only(wanted, "column", "only a file of rates has columns", "total_rate_10min.csv --column NAME")
        if wanted.requests:
            drawn = msgspec.structs.replace(drawn, requests=min(drawn.requests, wanted.requests))
        return Asking(about=source, begin=lambda: load_of(drawn, seed, wanted.load))
    tally = Tally(path, strict=wanted.strict)
    if WINDOW in header_of(path):
        known = list(_of_rates(path, tally, wanted, seed))
    else:
        _only(wanted, "column", "only a file of rates has columns", "total_rate_10min.csv --column NAME")
        known = list(_of_trace(path, tally, wanted))
    if not known:
        raise fault("no request is left", path, need="one at least", have=str(dict(tally.counts)))
    return Asking(about=path.name, begin=lambda: Open(known), skipped=tally.counts)


def parse(text: str) -> Drawn:
    """Parse a text such as `poisson:rate=50`. Raises `SpecError`.

    >>> parse("poisson:rate=50,requests=100").rate
    50.0
    """
    loop, _, rest = text.partition(":")
    fields: dict[str, Any] = {"loop": loop}
    for part in filter(None, rest.split(",")):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or name in fields or name not in Drawn.__struct_fields__:
            need = ", ".join(f"{name}=…" for name in Drawn.__struct_fields__ if name != "loop")
            raise _unfit(short(name), need, short(part))
        fields[name] = value
    try:
        drawn = convert(fields, Drawn, strict=False)
    except msgspec.ValidationError as error:
        field = str(error).partition(" - at `$.")[2].rstrip("`.") or "loop"
        raise _unfit(field, "a number", short(str(fields.get(field, text)))) from None
    bounds = {
        "requests": (1, MOST), "rate": (1e-6, MOST_RATE), "clients": (1, MOST_CLIENTS), "variation": (0, 1e4),
    }  # fmt: skip
    for field, (least, most) in bounds.items():
        if not least <= (value := getattr(drawn, field)) <= most:
            raise _unfit(field, f"{least:g} to {most:g}", f"{value:g}")
    try:
        parse_duration(drawn.think)
    except ValueError as error:
        raise _unfit("think", str(error), short(drawn.think)) from None
    return drawn


def load_of(drawn: Drawn, seed: int, faster: float = 1.0) -> Load:
    """Return the load. Every call returns the same requests."""
    draw = Random(f"{seed} {drawn.loop}")  # noqa: S311 what a seed decides is no secret
    square = log(1 + drawn.variation)

    def size() -> float:
        return draw.lognormvariate(-square / 2, sqrt(square)) if square else 1.0

    if drawn.loop == "clients":
        think = parse_duration(drawn.think) / faster
        return Clients(
            drawn.clients,
            drawn.requests,
            lambda: round(draw.expovariate(1.0) * think),
            lambda at: Request(at, size()),
        )

    def arrivals() -> Iterator[Request]:
        at = 0.0
        for _ in range(drawn.requests):
            at += draw.expovariate(drawn.rate * faster)
            yield Request(round(at * SECOND), size())

    return Open(arrivals())


def _of_trace(path: Path, tally: Tally, wanted: Wanted) -> Iterator[Request]:
    format = format_of(path, Options())
    if format.name not in FORMATS:
        raise fault(
            "the trace is of no requests", path, need=f"{', '.join(FORMATS)}, or rates ({WINDOW})", have=format.name,
            hint=f"`poise simulate {path} --fleet FILE` is for traces of jobs",
        )  # fmt: skip
    known = sorted(requests.calls(format.name, path, tally))
    first = known[0].at if known else 0.0
    for call in known[: wanted.requests or None]:
        at = round((call.at - first) / wanted.load * SECOND)
        if wanted.until and at >= wanted.until:
            return
        guess = max(1.0, float(call.prompt))
        yield Request(at, 1.0, call.prompt, call.tokens, guess, blocks=call.blocks)


def _of_rates(path: Path, tally: Tally, wanted: Wanted, seed: int) -> Iterator[Request]:
    """Yield the arrivals of a Poisson process with the rate of each window, times `load`."""
    columns = [name for name in header_of(path) if name != WINDOW]
    if wanted.column not in columns:
        raise SpecError(
            "the file of rates has no such column", field="--column", need=f"one of {', '.join(columns)}",
            have=wanted.column,
            hint=f"--column {columns[0] if columns else 'NAME'}",
        )  # fmt: skip
    windows: list[tuple[float, float]] = []
    for row in table(path, tally, (WINDOW, wanted.column)):
        try:
            windows.append((row.instant(WINDOW), row.number(wanted.column, most=MOST_RATE) * wanted.load))
        except BadRow as why:
            tally.bad(row.line, why)
    draw = Random(f"{seed} rates")  # noqa: S311 what a seed decides is no secret
    made, most = 0, min(wanted.requests or MOST, MOST)
    length = windows[1][0] - windows[0][0] if len(windows) > 1 else 600.0
    for begins, rate in windows:
        at = begins - windows[0][0]
        while rate and (at := at + draw.expovariate(rate)) < begins - windows[0][0] + length:
            if made == most or (wanted.until and at * SECOND >= wanted.until):
                return
            made += 1
            yield Request(round(at * SECOND))


def _only(wanted: Wanted, name: str, why: str, hint: str) -> None:
    """Raise `SpecError` for an option that has no effect here."""
    if value := getattr(wanted, name):
        raise SpecError(f"`--{name}` does nothing here: {why}", field=f"--{name}", have=str(value), hint=hint)


def _unfit(field: str, need: str, have: str) -> SpecError:
    hint = "poisson:rate=50,requests=10000"
    return SpecError(
        "requests cannot be generated from this", code="E103", field=field, need=need, have=have, hint=hint
    )
