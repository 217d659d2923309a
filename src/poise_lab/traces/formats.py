"""Detect the format of a trace by its content, not by its name, and read it.

read_trace(Path("philly.csv.gz"), Options(jobs=1000))
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from poise.errors import SpecError
from poise.model.workload import Workload
from poise_lab.traces import (
    chronus,
    elasticflow,
    gavel,
    helios,
    openb,
    pai,
    philly,
    plain,
    poiselog,
    pollux,
    requests,
    shockwave,
    synthetic,
)
from poise_lab.traces.options import Options
from poise_lab.traces.rows import fault, head_of, short

TOO_EARLY = "it was submitted before `--last`"


class Head(NamedTuple):
    """The beginning of a file: its bytes, its lines, and the possible column names in the first line. Empty for a
    folder.
    """

    path: Path
    content: bytes
    lines: list[str]
    columns: tuple[str, ...]

    def names(self, *columns: str) -> bool:
        """Return whether the first line names these columns, possibly among others."""
        return set(columns) <= set(self.columns)


class Format(NamedTuple):
    """A format: its name, description, detection function and reader, and the flags that only some formats take."""

    name: str
    about: str
    recognises: Callable[[Head], bool]
    read: Callable[[Path, Options], Workload]
    takes: tuple[str, ...] = ()


FORMATS = {
    format.name: format
    for format in (
        Format("philly", "Microsoft Philly, flat CSV", lambda head: head.names(*philly.RECOGNISED), philly.read),
        Format("openb", "Alibaba 2023, pods that share GPUs", lambda head: head.names(*openb.PODS), openb.read),
        Format("helios", "SenseTime Helios, one cluster", lambda head: head.names(*helios.COLUMNS), helios.read),
        Format(
            "pai",
            "Alibaba PAI 2020, flat CSV or folder of tables",
            lambda head: pai.recognises(head.path) or head.names(*pai.FLAT),
            pai.read,
        ),
        Format(
            "elasticflow",
            "ElasticFlow, jobs with deadlines",
            lambda head: head.names(*elasticflow.COLUMNS) or head.names(*elasticflow.MICROSOFT),
            elasticflow.read,
            ("--throughputs", "--elastic"),
        ),
        Format(
            "chronus",
            "Chronus, jobs with deadlines or none",
            lambda head: head.names(*chronus.RECOGNISED),
            chronus.read,
        ),
        Format(
            "azure",
            "Azure, requests to language models",
            lambda head: head.names(*requests.AZURE) or head.names(*requests.SECONDS),
            requests.read_azure,
        ),
        Format(
            "burstgpt",
            "BurstGPT, requests to language models",
            lambda head: head.names(*requests.BURSTGPT),
            requests.read_burstgpt,
        ),
        Format(
            "mooncake",
            "Mooncake, requests to language models",
            lambda head: head.names(*requests.MILLISECONDS) or any(map(requests.is_record, head.lines[:1])),
            requests.read_mooncake,
        ),
        Format(
            "shockwave",
            "Shockwave, jobs whose batches grow",
            lambda head: shockwave.recognises(head.lines),
            shockwave.read,
            ("--throughputs",),
        ),
        Format(
            "poise",
            "Poise's own log, or the home of one",
            lambda head: poiselog.recognises(head.path, head.content),
            poiselog.read,
        ),
        Format(
            "gavel",
            "Gavel, jobs of steps",
            lambda head: gavel.recognises(head.lines),
            gavel.read,
            ("--throughputs",),
        ),
        Format(
            "pollux",
            "Pollux, jobs that scale",
            lambda head: head.names(*pollux.COLUMNS),
            pollux.read,
            ("--throughputs", "--elastic"),
        ),
    )
}
PLAIN = Format("plain", "any CSV, with a mapping of its columns", lambda head: False, plain.read, ("--map",))


def read_trace(trace: Path | str, options: Options | None = None, format: str = "") -> Workload:
    """Return the workload of a file. Its format is `format` if given, else a plain CSV if the options map columns, else
    the detected one. A text such as `poisson:jobs=1000` is generated. Raises `SpecError` and `NotFound`.
    """
    options = options or Options()
    options.check()
    path = Path(trace)
    if synthetic.is_synthetic(str(trace)) and not path.exists():
        _check_flags(options, "a generated workload", ())
        workload = synthetic.generate(synthetic.parse(str(trace)), options)
    else:
        chosen = format_of(path, options, format)
        _check_flags(options, f"a trace of format `{chosen.name}`", chosen.takes)
        workload = chosen.read(path, options)
    return _end_of(workload, round(options.last / options.load)) if options.last else workload


def _check_flags(options: Options, what: str, takes: tuple[str, ...]) -> None:
    """Raise `SpecError` for a flag that would have no effect on `what`."""
    given = {"--map": options.columns, "--throughputs": options.throughputs, "--elastic": options.elastic}
    for flag, value in given.items():
        if value and flag not in takes:
            able = ", ".join(one.name for one in (*FORMATS.values(), PLAIN) if flag in one.takes)
            raise SpecError(
                f"`{flag}` has no effect on {what}", field=flag, need=f"a trace of format {able}", have=what,
                hint=f"leave `{flag}` out",
            )  # fmt: skip


def _end_of(workload: Workload, span: int) -> Workload:
    """Return the jobs submitted within `span` nanoseconds before the last submission."""
    begin = workload.arrivals[-1].at - span
    kept = [one for one in workload.arrivals if one.at >= begin]
    left_out = {TOO_EARLY: len(workload.arrivals) - len(kept)} if len(kept) < len(workload.arrivals) else {}
    arrivals = tuple(msgspec.structs.replace(one, at=one.at - kept[0].at) for one in kept)
    return msgspec.structs.replace(workload, arrivals=arrivals, skipped=workload.skipped | left_out)


def format_of(path: Path, options: Options, named: str = "") -> Format:
    """Return the format with which to read a file. Raises `SpecError` if none matches."""
    known = FORMATS | {PLAIN.name: PLAIN}
    if named:
        if named not in known:
            raise SpecError(
                "this format does not exist", field="format", need=", ".join(known), have=short(named),
                hint=f"`--format {PLAIN.name} --map submit=COLUMN,duration=COLUMN,gpus=COLUMN`",
            )  # fmt: skip
        return known[named]
    if options.columns:
        return PLAIN
    head = _head(path)
    for one in FORMATS.values():
        if one.recognises(head):
            return one
    if path.is_dir():
        raise fault(
            "the folder holds no trace that is known", path, need=f"{pai.JOB_TABLE}, or the {poiselog.LOG} of a home",
            have="a folder", hint=f"`ls {path}`",
        )  # fmt: skip
    if b"\0" in head.content:
        raise fault("the file is not text", path, have="a byte 0", hint=f"`file {path}`")
    if not head.lines:
        raise fault("the trace has no rows", path, have="an empty file", hint=f"`ls -l {path}`")
    raise fault(
        "the trace is of no format that is known", path, 1, need=", ".join(known), have=short(head.lines[0], 200),
        hint="`--map submit=COLUMN,duration=COLUMN,gpus=COLUMN` for a CSV of your own",
    )  # fmt: skip


def _head(path: Path) -> Head:
    content = b"" if path.is_dir() else head_of(path)
    lines = list(_text(content))
    first = lines[0] if lines else ""
    return Head(path, content, lines, tuple(cell.strip().strip('"') for cell in first.split(",")))


def _text(content: bytes) -> Iterator[str]:
    for line in content.decode("utf-8-sig", errors="replace").splitlines():
        if line.strip():
            yield line
