"""Properties of reading: whatever is in a file, it is read or refused with an error of ours, and says what it left."""

import gzip
import json
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from poise.errors import PoiseError
from poise_lab.traces import chronus, elasticflow, gavel, helios, openb, pai, philly, requests, shockwave
from poise_lab.traces.formats import FORMATS, PLAIN, read_trace
from poise_lab.traces.options import Options
from poise_lab.traces.synthetic import parse
from unit.twin.test_formats import RATES

HEADERS = {
    "philly": philly.RECOGNISED,
    "helios": helios.COLUMNS,
    "pai": pai.FLAT,
    "elasticflow": elasticflow.COLUMNS,
    "chronus": chronus.RECOGNISED,
    "openb": openb.PODS,
    "azure": requests.AZURE,
    "burstgpt": requests.BURSTGPT,
    "mooncake": requests.MILLISECONDS,
    "plain": ("submit", "duration", "gpus", "nodes", "memory", "priority", "deadline"),
}
TABBED = {"gavel": gavel.COLUMNS, "shockwave": shockwave.COLUMNS}
COLUMNS = {name: name for name in HEADERS["plain"]}

CELLS = st.one_of(
    st.sampled_from(
        [
            "", "0", "1", "8", "64", "0.5", "-1", "1e9", "1e308", "1e-300", "nan", "inf", "-inf", "1_000", "٣", "0x10",
            "2017-10-09 07:01:55", "2017-10-09", "9999-12-31T23:59:59.9999999-23:59", "0001-01-01", "2017-13-40",
            "COMPLETED", "FAILED", "Terminated", "LS", "BE", "gns", "accordion", "static", "LM (batch size 10)",
            "ResNet-18 (batch size 32)", "ResNet-50 (batch size 0)", "V100M16|V100M32", "high", "12GiB", '"', "'",
            "a,b", "\0", "\ufeff", " 7 ",
        ]
    ),
    st.integers().map(str),
    st.floats().map(repr),
    st.text(max_size=6),
)  # fmt: skip
OPTIONS = st.builds(
    Options,
    devices_per_node=st.integers(1, 9),
    information=st.sampled_from(["oracle", "estimated", "none"]),
    jobs=st.integers(0, 3),
    load=st.sampled_from([0.5, 1.0, 2.0, 1e-9, 1e9]),
    strict=st.booleans(),
    cpu_work=st.booleans(),
    columns=st.just(COLUMNS),
)


def check(name: str, content: bytes, options: Options, rows: int = -1) -> None:
    """It is read, and what it left out is counted; or refused."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace"
        path.write_bytes(content)
        (Path(folder) / "simulation_throughputs.json").write_text(json.dumps(RATES))
        try:
            read = read_trace(path, options, format=name)
        except PoiseError as error:
            assert error.record.message
            return
    assert read.arrivals
    assert read.arrivals[0].at == 0
    assert all(before.at <= after.at < 2**62 for before, after in zip(read.arrivals, read.arrivals[1:], strict=False))
    assert all(0 <= one.units[0].expect < 2**62 and one.units[0].deadline < 2**62 for one in read.arrivals)
    if rows >= 0 and not options.jobs:
        assert len(read.arrivals) + sum(read.skipped.values()) == rows


@given(st.sampled_from(sorted({**FORMATS, PLAIN.name: PLAIN})), st.binary(max_size=200), OPTIONS, st.booleans())
def test_any_bytes(name: str, content: bytes, options: Options, packed: bool) -> None:
    check(name, gzip.compress(content)[: len(content) + 5] if packed else content, options)


@given(st.binary(max_size=300))
def test_any_bytes_of_no_format_that_was_named(content: bytes) -> None:
    check("", content, Options())


@given(st.data(), st.sampled_from(sorted(HEADERS)), OPTIONS)
def test_any_cells_under_the_right_header(data: st.DataObject, name: str, options: Options) -> None:
    header = HEADERS[name]
    if name == "elasticflow" and data.draw(st.booleans()):
        header = elasticflow.MICROSOFT
    row = st.lists(CELLS, min_size=len(header), max_size=len(header))
    rows = data.draw(st.lists(row, max_size=6))
    lines = ["\t".join(header).replace("\t", ",")]
    lines += [",".join(f'"{cell.replace(chr(34), chr(34) * 2)}"' for cell in cells) for cells in rows]
    check(name, "\n".join(lines).encode("utf-8", "surrogatepass"), options, len(rows))


@given(st.data(), st.sampled_from(sorted(TABBED)), OPTIONS)
def test_any_cells_between_tabs(data: st.DataObject, name: str, options: Options) -> None:
    width = len(TABBED[name])
    row = st.lists(CELLS.filter(lambda cell: not set("\t\n\r") & set(cell)), min_size=width, max_size=width)
    rows = data.draw(st.lists(row, max_size=6))
    check(name, "\n".join("\t".join(cells) for cells in rows).encode("utf-8", "surrogatepass"), options)


@given(st.lists(st.recursive(st.none() | st.floats() | st.integers() | st.text(max_size=5), st.lists, max_leaves=3)))
def test_any_records_of_requests(values: list[object]) -> None:
    lines = [json.dumps({"timestamp": value, "input_length": value, "output_length": 1}) for value in values]
    check("mooncake", "\n".join(lines).encode(), Options())


@given(st.text(max_size=40))
def test_any_text_for_what_is_to_be_drawn(text: str) -> None:
    try:
        parse(f"poisson:{text}")
    except PoiseError as error:
        assert error.record.field
