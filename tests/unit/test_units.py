import math
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from poise.units import (
    DAY,
    HOUR,
    MILLISECOND,
    MINUTE,
    SECOND,
    format_bytes,
    format_cpu,
    format_duration,
    is_plain,
    parse_bytes,
    parse_cpu,
    parse_duration,
    parse_flops,
    parse_rate,
    parse_share,
)


def test_the_examples_of_the_docstring() -> None:
    assert parse_bytes("12GiB") == 12 * 2**30
    assert parse_duration("1h30m") == 90 * MINUTE
    assert parse_cpu("0.5") == 500


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("250ms", 250 * MILLISECOND),
        ("1.5h", 90 * MINUTE),
        ("2d 4h", 2 * DAY + 4 * HOUR),
        ("10min", 10 * MINUTE),
        ("90M", 90 * MINUTE),
        ("7", 7 * SECOND),
        (7, 7 * SECOND),
        (0.25, 250 * MILLISECOND),
        ("0s", 0),
        ("9007199254740993ns", 9_007_199_254_740_993),
    ],
)
def test_durations_as_people_write_them(text: Any, nanoseconds: int) -> None:
    assert parse_duration(text) == nanoseconds


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("500MB", 500 * 10**6),
        ("500MiB", 500 * 2**20),
        ("8Gi", 8 * 2**30),
        ("8gib", 8 * 2**30),
        ("4G", 4 * 2**30),
        ("1.5 t", 3 * 2**39),
        ("1.5kB", 1500),
        ("12 B", 12),
        (4096, 4096),
        (4096.0, 4096),
        ("0", 0),
    ],
)
def test_gb_and_gib_differ(text: Any, amount: int) -> None:
    assert parse_bytes(text) == amount


@pytest.mark.parametrize(("text", "milli"), [("2", 2000), ("500m", 500), (0.1, 100), (3, 3000), ("0.001", 1)])
def test_cpus_are_counted_in_thousandths(text: Any, milli: int) -> None:
    assert parse_cpu(text) == milli


@pytest.mark.parametrize("parse", [parse_duration, parse_bytes, parse_cpu])
@pytest.mark.parametrize(
    "absurd",
    ["", "  ", "-1", "-5m", -1, -0.5, math.nan, math.inf, -math.inf, True, False, 10**400, "9" * 5000,
     "1e400", "\u0661", "0x10", "5 parsecs", "12GPU", "five", "1.2.3", "1,5", "99999999999999999999999999d", 2**63],
)  # fmt: skip
def test_what_no_machine_could_have_is_refused_in_words(parse: Any, absurd: Any) -> None:
    with pytest.raises(ValueError, match=r"not `|not an empty text"):
        parse(absurd)


def test_a_unit_without_meaning_is_told_which_have_one() -> None:
    with pytest.raises(ValueError, match=r"a unit of memory \(B, kB, MB, GB.*not `parsecs`"):
        parse_bytes("12 parsecs")
    with pytest.raises(ValueError, match=r"a unit of time \(ns, us, ms, s, .*not `y`"):
        parse_duration("1y")
    with pytest.raises(ValueError, match=r"a unit of time"):
        parse_duration("1h30")


@given(st.integers(0, 2**62))
def test_integers_are_read_exactly(amount: int) -> None:
    assert parse_bytes(amount) == parse_bytes(str(amount)) == parse_duration(f"{amount}ns") == amount


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    for parse in (parse_duration, parse_bytes, parse_cpu):
        try:
            assert 0 <= parse(text) <= 2**62
        except ValueError as error:
            assert len(str(error)) < 300


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (None, "-"),
        (0, "0 ms"),
        (350 * MILLISECOND, "350 ms"),
        (999_700_000, "1.0 s"),
        (2_400 * MILLISECOND, "2.4 s"),
        (59_970 * MILLISECOND, "1m0s"),
        (192 * SECOND, "3m12s"),
        (HOUR - MILLISECOND, "1h0m"),
        (2 * DAY + 4 * HOUR, "2d4h"),
        (-2 * SECOND, "-2.0 s"),
    ],
)
def test_durations_for_people(nanoseconds: int | None, text: str) -> None:
    assert format_duration(nanoseconds) == text


@pytest.mark.parametrize(
    ("amount", "text"),
    [(None, "-"), (0, "0 B"), (1023, "1023 B"), (12 * 2**30, "12 GiB"), (1536, "1.5 KiB"), (2**20 - 1, "1 MiB")],
)
def test_bytes_for_people(amount: int | None, text: str) -> None:
    assert format_bytes(amount) == text


@given(st.integers(0, 10**9))
def test_cpus_for_people_read_back(milli: int) -> None:
    assert parse_cpu(format_cpu(milli)) == milli


@pytest.mark.parametrize("parse", [parse_duration, parse_bytes, parse_cpu, parse_rate, parse_flops, parse_share])
@pytest.mark.parametrize("text", ["1_000", "0_1", "\uff11\uff12", "\u0661", "1_0%", "\u00b2"])
def test_numbers_are_written_in_plain_digits(parse: Any, text: str) -> None:
    """Python's own `int` and `float` take all of these but the last."""
    with pytest.raises(ValueError, match="not `"):
        parse(text)
    assert not is_plain(text)


@pytest.mark.parametrize("text", ["0", "-1.5", "1e9", "nan", ""])
def test_plain_text_is_plain(text: str) -> None:
    assert is_plain(text)
