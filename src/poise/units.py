"""Quantities: parsing and formatting, and the integers that the ledger stores.

The ledger and the log hold integers only: milli-CPU, bytes, nanoseconds. People write `1.5`, `12GiB`, `90m`. GB and GiB
differ (10^9 and 2^30 bytes), `Gi` means GiB. Every parser here raises `ValueError` with a message that
names the expected form; callers add the field.

>>> parse_bytes("12GiB")
12884901888
>>> parse_duration("1h30m") == 90 * MINUTE
True
>>> parse_cpu("0.5")
500
"""

import re
from decimal import Decimal
from functools import lru_cache
from typing import NewType

Instant = NewType("Instant", int)
"""Nanoseconds since the log was created. Never wall-clock time, which may step back; leases and order must not depend
on it."""

NANOSECOND = 1
MILLISECOND = 1_000_000
SECOND = 1_000_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR

_DURATION = {"ns": 1, "us": 1_000, "ms": MILLISECOND, "s": SECOND, "m": MINUTE, "min": MINUTE, "h": HOUR, "d": DAY}
_BYTES = {"": 1, "b": 1} | {
    f"{prefix}{suffix}": base**power
    for power, prefix in enumerate("kmgtp", start=1)
    for suffix, base in (("b", 1000), ("ib", 1024), ("i", 1024), ("", 1024))
}
_UNSURE_UNIT = re.compile(r"\s*([0-9.]+)\s*([kmgtpKMGTP](?!b)|[KMGTP])(b?)\s*")
_WORD = re.compile(r"([0-9]{1,9})\s*(weeks?|w|days?|hours?|hrs?|minutes?|mins?|seconds?|secs?)\b,?\s*", re.IGNORECASE)
_WORDS = re.compile(rf"\s*(?:{_WORD.pattern})+", re.IGNORECASE)
_NUMBER_UNIT = re.compile(r"\s*([0-9]{1,40}(?:\.[0-9]{1,40})?)\s*([a-zA-Z]*)")  # longer numbers are not quantities
_SCALES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "p": 10**15, "e": 10**18}
_RATE = re.compile(r"\s*([0-9]{1,40}(?:\.[0-9]{1,40})?)\s*([kKMGTP]?)(bit|b|B|Byte|bps)(?:/s|ps)?\s*")
_FLOPS = re.compile(r"\s*([0-9]{1,20}(?:\.[0-9]{1,20})?(?:e[0-9]{1,2})?)\s*(?:([kKMGTPE]?)(?:FLOPS?|OPS?)(?:/s)?)?\s*")
_SHARE = re.compile(r"\s*([0-9]{1,20}(?:\.[0-9]{1,20})?)\s*(%?)\s*")
_MAX = 2**62  # room to add two quantities and stay inside 64 bits


_remembered = lru_cache(maxsize=1024, typed=True)  # files repeat their quantities; `1`, `1.0` and `true` differ


@_remembered
def parse_duration(text: str | int | float) -> int:
    """Nanoseconds from `90m`, `1h30m`, `250ms`; a bare number is seconds."""
    if not isinstance(text, str):
        return _from_number(text, SECOND, "a duration such as `90m` or `1h30m`")
    stripped = text.strip()
    if not stripped:
        raise ValueError("a duration such as `90m` or `1h30m`, not an empty text")
    total, position = Decimal(0), 0
    while position < len(stripped):
        match = _NUMBER_UNIT.match(stripped, position)
        if match is None:
            raise ValueError(f"a duration such as `90m` or `1h30m`, not `{_short(text)}`")
        unit = match[2].lower()
        bare = unit == "" and position == 0 and match.end() == len(stripped)
        if unit not in _DURATION and not bare:
            known = ", ".join(sorted(_DURATION, key=lambda name: _DURATION[name]))
            raise ValueError(f"a unit of time ({known}), not `{_short(match[2] or text)}`")
        total += Decimal(match[1]) * _DURATION.get(unit, SECOND)
        position = match.end()
    return _bounded(total, text)


_CLOCK = re.compile(r"(?:([0-9]{1,9})-)?([0-9]{1,9}(?::[0-9]{1,9}){0,2})")


def duration_of_slurm(text: str) -> str:
    """Convert Slurm's `days-hours:minutes:seconds`, most of which is optional. Raises `ValueError`.

    >>> duration_of_slurm("1-00:30"), duration_of_slurm("00:01:00"), duration_of_slurm("5")
    ('1d30m', '1m', '5m')
    """
    match = _CLOCK.fullmatch(text)
    if match is None:
        raise ValueError(text)
    days, numbers = match[1], match[2].split(":")
    units = "hms" if days or len(numbers) == 3 else "ms"
    told = [f"{int(number)}{unit}" for number, unit in zip(numbers, units, strict=False) if int(number)]
    return "".join([f"{int(days)}d", *told] if days else told)


@_remembered
def parse_bytes(text: str | int | float) -> int:
    """Bytes from `12GiB`, `500MB`, `8Gi`; `8G` is 8 GiB, as for Slurm and Docker; a bare number is bytes."""
    if not isinstance(text, str):
        return _from_number(text, 1, "an amount of memory such as `12GiB`")
    match = _NUMBER_UNIT.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"an amount of memory such as `12GiB`, not `{_short(text)}`")
    unit = match[2].lower()
    if unit not in _BYTES:
        raise ValueError(f"a unit of memory (B, kB, MB, GB, TB, KiB, MiB, GiB, TiB), not `{_short(match[2])}`")
    return _bounded(Decimal(match[1]) * _BYTES[unit], text)


def bytes_meant(text: object) -> str:
    """Return an amount of memory with the unit that is assumed for a short unit or one of bits; else empty.

    >>> bytes_meant("4G"), bytes_meant("2Gb"), bytes_meant("2GB")
    ('4GiB', '2GB', '')
    """
    match = _UNSURE_UNIT.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        return ""
    return f"{match[1]}{match[2].upper()}{'B' if match[3] else 'iB'}"


def duration_meant(text: object) -> str:
    """Return a duration in short units if its units are written out; else empty.

    >>> duration_meant("7days"), duration_meant("2 weeks"), duration_meant("1 hour 30 minutes")
    ('7d', '14d', '1h30m')
    """
    if not isinstance(text, str) or not _WORDS.fullmatch(text):
        return ""
    found = ((int(count), unit[0].lower()) for count, unit in _WORD.findall(text))
    return "".join(f"{7 * count}d" if unit == "w" else f"{count}{unit}" for count, unit in found)


@_remembered
def parse_cpu(text: str | int | float) -> int:
    """Milli-CPU from `2`, `0.5` or `500m`."""
    if not isinstance(text, str):
        return _from_number(text, 1000, "a number such as `2`, `0.5` or `500m`")
    match = _NUMBER_UNIT.fullmatch(text.strip())
    if match is None or match[2] not in ("", "m"):
        raise ValueError(f"a number such as `2`, `0.5` or `500m`, not `{_short(text)}`")
    return _bounded(Decimal(match[1]) * (1 if match[2] else 1000), text)


def is_plain(text: str) -> bool:
    """Return whether a number is written in ASCII and without `_`. Python's `int` and `float` also accept `1_000` and
    the digits of every script.
    """
    return text.isascii() and "_" not in text


def format_duration(nanoseconds: int | None) -> str:
    """A duration for people: `350 ms`, `2.4 s`, `3m12s`, `2d4h`; `-` for none."""
    if nanoseconds is None:
        return "-"
    if nanoseconds < 0:
        return f"-{format_duration(-nanoseconds)}"
    if nanoseconds < SECOND - MILLISECOND // 2:
        return f"{nanoseconds / MILLISECOND:.0f} ms"
    if nanoseconds < MINUTE - 50 * MILLISECOND:
        return f"{nanoseconds / SECOND:.1f} s"
    whole = (nanoseconds + SECOND // 2) // SECOND * SECOND
    for large, small, names in ((DAY, HOUR, "dh"), (HOUR, MINUTE, "hm")):
        if whole >= large:
            return f"{whole // large}{names[0]}{whole % large // small}{names[1]}"
    return f"{whole // MINUTE}m{whole % MINUTE // SECOND}s"


def format_bytes(amount: int | None) -> str:
    """Bytes for people, in binary units: `12 GiB`, `1.5 MiB`; `-` for none."""
    if amount is None:
        return "-"
    value, unit = float(amount), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        if round(value, 1) < 1024:
            break
        value, unit = value / 1024, larger
    value = round(value, 1)
    return f"{value:.0f} {unit}" if value == int(value) else f"{value:.1f} {unit}"


def format_energy(millijoules: int) -> str:
    """Energy for people: `850 J`, `3.2 Wh`, `1.25 kWh`.

    >>> format_energy(2_500_000), format_energy(4_500_000_000)
    ('2,500 J', '1.25 kWh')
    """
    joules = millijoules / 1000
    if joules < 3600:
        return f"{joules:.3g} J" if joules < 1000 else f"{joules:,.0f} J"
    return f"{joules / 3.6e3:.3g} Wh" if joules < 3.6e6 else f"{joules / 3.6e6:,.2f} kWh"


def parse_rate(text: str | int | float) -> int:
    """Bits per second from `10Gbit`, `400Gbit/s`, `900GB/s` (bytes are eight bits); a bare number is bits per second.

    >>> parse_rate("1GB/s")
    8000000000
    """
    if not isinstance(text, str):
        return _from_number(text, 1, "a bandwidth such as `10Gbit` or `900GB/s`")
    match = _RATE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"a bandwidth such as `10Gbit` or `900GB/s`, not `{_short(text)}`")
    scale = _SCALES[match[2].lower()] * (8 if match[3] in ("B", "Byte") else 1)
    return _bounded(Decimal(match[1]) * scale, text)


def parse_flops(text: str | int | float) -> int:
    """Operations (per second) from `312 TFLOPS`, `20 TFLOP`, `1e15`; a bare number is operations.

    >>> parse_flops("312 TFLOPS") == 312 * 10**12
    True
    """
    if not isinstance(text, str):
        return _from_number(text, 1, "an amount of compute such as `312 TFLOPS`")
    match = _FLOPS.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"an amount of compute such as `312 TFLOPS`, not `{_short(text)}`")
    return _bounded(Decimal(match[1]) * _SCALES[(match[2] or "").lower()], text)


def parse_share(text: str | int | float) -> int:
    """Thousandths from `90%` or `0.9`.

    >>> parse_share("90%"), parse_share(0.25)
    (900, 250)
    """
    if isinstance(text, str):
        match = _SHARE.fullmatch(text)
        if match is None:
            raise ValueError(f"a share such as `90%` or `0.9`, not `{_short(text)}`")
        value = Decimal(match[1]) / (100 if match[2] else 1)
    else:
        value = Decimal(str(text))
    if value.is_nan() or not 0 <= value <= 1:
        raise ValueError(f"a share from 0 to 1 such as `90%`, not `{_short(str(text))}`")
    return int(value * 1000)


def format_rate(bits: int) -> str:
    """Bits per second for people: `10 Gbit/s`."""
    value, unit = Decimal(bits), ""
    for larger in ("k", "M", "G", "T", "P"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{value:.4g} {unit}bit/s"


def format_flops(operations: int) -> str:
    """Operations for people: `989.5 TFLOP`.

    >>> format_flops(989_500_000_000_000), format_flops(7)
    ('989.5 TFLOP', '7 FLOP')
    """
    value, unit = Decimal(operations), ""
    for larger in ("k", "M", "G", "T", "P", "E"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{value:.4g} {unit}FLOP"


def type_bytes(amount: int) -> str:
    """Format an amount of memory as it can be typed, rounded down to hundredths of its unit.

    >>> type_bytes(80 * 10**9), type_bytes(6 * 2**30)
    ('74.5GiB', '6GiB')
    """
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if amount >= (scale := _BYTES[unit.lower()]):
            return _hundredths(amount, scale) + unit
    return str(amount)


def type_rate(bits: int) -> str:
    """Format a bandwidth as it can be typed, rounded down to hundredths of its unit.

    >>> type_rate(400 * 10**9)
    '400Gbit'
    """
    for unit in ("P", "T", "G", "M", "k"):
        if bits >= (scale := _SCALES[unit.lower()]):
            return f"{_hundredths(bits, scale)}{unit}bit"
    return f"{bits}bit"


def _hundredths(amount: int, scale: int) -> str:
    return f"{Decimal(amount * 100 // scale) / 100:f}"


def format_cpu(milli: int) -> str:
    """Milli-CPU for people: `2`, `0.5`."""
    return f"{Decimal(milli) / 1000:f}".rstrip("0").rstrip(".") if milli % 1000 else str(milli // 1000)


def _from_number(number: int | float, scale: int, expected: str) -> int:
    if isinstance(number, bool):
        raise ValueError(f"{expected}, not `{str(number).lower()}`")
    if isinstance(number, float):
        return _bounded(Decimal(repr(number)) * scale, str(number))  # exactly as written: 0.1 is a tenth
    return _bounded(number * scale, "a number of many digits" if abs(number) > _MAX else str(number))


def _bounded(value: Decimal | int, text: str) -> int:
    if value != value or value < 0:
        raise ValueError(f"a number that is not negative, not `{_short(text)}`")
    if value > _MAX:
        raise ValueError(f"a number that a machine could have, not `{_short(text)}`")
    return round(value)


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:60]}…"
