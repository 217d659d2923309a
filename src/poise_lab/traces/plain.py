"""Read any CSV with a header line, with a mapping from fields to columns.

    submit=created_at,duration=hours:h,gpus=n

A time column can have a unit after a colon; the default is seconds. Instants can also be dates. `FIELDS` lists the
fields; `submit` and `duration` are required (`start` and `end` can replace `duration`).
"""

from collections.abc import Mapping
from pathlib import Path

from poise.errors import SpecError
from poise.model.jobs import Outcome, Priority
from poise.model.workload import Workload
from poise.units import parse_bytes
from poise_lab.traces.making import Maker, Said, named
from poise_lab.traces.options import Options
from poise_lab.traces.rows import BadRow, Row, short, table

FIELDS = {
    "submit": "when it was submitted",
    "duration": "how long it ran",
    "start": "when it started, where `end` is named and not `duration`",
    "end": "when it ended",
    "gpus": "its devices, all of them together (without: 1)",
    "nodes": "on how many nodes they are (without: as many as are needed)",
    "cpus": "its CPUs, all of them together",
    "memory": "its memory, all of it together: bytes, or with a unit",
    "kind": "the class of work that it is",
    "tenant": "whose it is",
    "priority": "urgent, high, medium, low, or 0 to 3",
    "deadline": "until when it should be done",
    "expect": "how long its user thought that it would run",
    "state": "how it ended: failed, cancelled and the like, or anything else for done",
}
TIMES = ("submit", "duration", "start", "end", "deadline", "expect")
UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
FAILED = (
    "failed", "fail", "error", "timeout", "node_fail", "boot_fail", "out_of_memory", "oom", "deadline", "cancelled",
    "canceled", "killed",
)  # fmt: skip
"""States of a job that was not done; those of Slurm are among them."""


def parse_mapping(text: str) -> dict[str, str]:
    """Parse a mapping such as `submit=created_at,duration=hours:h`. Raises `SpecError`.

    >>> parse_mapping("submit=created_at,duration=hours:h")
    {'submit': 'created_at', 'duration': 'hours:h'}
    """
    mapping: dict[str, str] = {}
    for part in text.split(","):
        field, equals, column = (piece.strip() for piece in part.partition("="))
        if not equals or not column or field not in FIELDS or field in mapping:
            raise SpecError(
                "the mapping of columns cannot be read" if field not in mapping else "a field is mapped twice",
                field="map", need=f"FIELD=COLUMN of {', '.join(FIELDS)}", have=short(part),
                hint="`--map submit=COLUMN,duration=COLUMN,gpus=COLUMN`",
            )  # fmt: skip
        mapping[field] = column
    return mapping


def read(path: Path, options: Options) -> Workload:
    """Read a CSV. Raises `SpecError` for a mapping that does not fit, and for a file that is not a CSV."""
    columns, scales = _columns(options.columns)
    maker = Maker(path.name.partition(".")[0] or "trace", path, options)
    for row in table(path, maker.tally, tuple(columns.values())):
        try:
            if (said := _said(row, maker, columns, scales, options)) is not None:
                maker.add(said)
        except BadRow as why:
            maker.tally.bad(row.line, why)
    return maker.workload()


def _columns(mapping: Mapping[str, str]) -> tuple[dict[str, str], dict[str, float]]:
    """Return the column of each field, and the unit of each time field in seconds."""
    columns, scales = {}, {}
    for field, column in mapping.items():
        name, colon, unit = column.rpartition(":")
        if colon and field in TIMES:
            if unit not in UNITS:
                raise SpecError(
                    "the unit of a column is not known", field=f"map.{field}", need=", ".join(UNITS), have=short(unit),
                    hint=f"`--map {field}={name}:s`",
                )  # fmt: skip
            column = name
        else:
            unit = "s"
        columns[field], scales[field] = column, UNITS[unit]
    if "submit" not in columns or not ("duration" in columns or {"start", "end"} <= columns.keys()):
        raise SpecError(
            "a plain CSV needs the submission time and the run time of its jobs", field="map",
            need="submit, and duration or start and end", have=", ".join(columns) or "nothing",
            hint="`--map submit=COLUMN,duration=COLUMN,gpus=COLUMN`",
        )  # fmt: skip
    return columns, scales


def _said(
    row: Row, maker: Maker, columns: Mapping[str, str], scales: Mapping[str, float], options: Options
) -> Said | None:
    """Return the job of a row; None for a job without devices, unless such jobs are wanted."""
    devices = row.devices(columns["gpus"], least=0) if "gpus" in columns else 1
    if not devices and not options.cpu_work:
        maker.tally.leave_out("no device is asked for")
        return None
    tasks, gpus = maker.gang(devices)
    if "nodes" in columns:
        tasks = row.whole(columns["nodes"], least=1, most=max(1, devices))
        if devices % tasks:
            raise BadRow(
                "the devices are not the same on each node", columns["nodes"], f"a divisor of {devices}", str(tasks)
            )
        gpus = devices // tasks
    submit = row.instant(columns["submit"], scales["submit"])
    tenant = named(row.text(columns["tenant"])) if "tenant" in columns else named("")
    kind = row.text(columns["kind"]) if "kind" in columns else "job"
    return Said(
        at=submit,
        seconds=_seconds(row, columns, scales),
        tasks=tasks,
        gpus=gpus,
        cpu=round(row.number(columns["cpus"], most=1e6) * 1000 / tasks) if "cpus" in columns else 0,
        memory=_memory(row, columns["memory"]) // tasks if "memory" in columns else 0,
        kind=f"{kind} x{devices}",
        tenant=tenant,
        priority=_priority(row, columns["priority"]) if "priority" in columns else Priority.MEDIUM,
        deadline=_deadline(row, columns["deadline"], scales["deadline"], submit) if "deadline" in columns else 0.0,
        guess=_optional(row, columns["expect"], scales["expect"]) if "expect" in columns else 0.0,
        outcome=_outcome(row.text(columns["state"])) if "state" in columns else "done",
    )


def _seconds(row: Row, columns: Mapping[str, str], scales: Mapping[str, float]) -> float:
    if "duration" in columns:
        return row.seconds(columns["duration"], scales["duration"])
    start, end = (row.instant(columns[field], scales[field]) for field in ("start", "end"))
    if end < start:
        raise BadRow("it ended before it started", columns["end"], row.text(columns["start"]), row.text(columns["end"]))
    return end - start


def _optional(row: Row, column: str, scale: float) -> float:
    return row.seconds(column, scale) if row.text(column) else 0.0


def _deadline(row: Row, column: str, scale: float, submit: float) -> float:
    """Return the seconds from submission to deadline; 0 without a deadline."""
    if not row.text(column):
        return 0.0
    due = row.instant(column, scale) - submit
    if due <= 0:
        raise BadRow("the deadline is before the submission", column, "a later instant", row.text(column))
    return due


def _memory(row: Row, column: str) -> int:
    text = row.text(column)
    try:
        memory = parse_bytes(text) if text else 0
    except ValueError as error:
        raise BadRow(f"`{column}` is no amount of memory", column, str(error), short(text)) from None
    if memory > 2**56:
        raise BadRow(f"`{column}` is absurd", column, "memory that machines could have", short(text))
    return memory


def _priority(row: Row, column: str) -> Priority:
    text = row.text(column)
    if text.upper() in Priority.__members__:
        return Priority[text.upper()]
    if text in ("0", "1", "2", "3"):
        return Priority(int(text))
    raise BadRow(f"`{column}` is no priority", column, "urgent, high, medium, low, or 0 to 3", short(text))


def _outcome(text: str) -> Outcome:
    word = text.lower().partition(" ")[0].rstrip("+")  # `sacct` writes `CANCELLED by 1000`, or `CANCELLED+`
    return "failed" if word in FAILED else "done"
