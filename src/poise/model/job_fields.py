"""Records of a job file. Each field is declared here, once; `model/fields.py` lists what is generated from a
declaration.

`model/spec.py` compiles these records into those of the ledger (`model/jobs.py`).
"""

import re
from collections.abc import Iterator, Mapping
from types import UnionType
from typing import Annotated, Any, Literal, get_args

import msgspec

from poise.errors import SpecError
from poise.model.arrays import MAX_PARTS
from poise.model.catalogue import CATALOGUE
from poise.model.deadlines import IfLate
from poise.model.document import shown
from poise.model.fields import (
    BYTES,
    CPU,
    DURATION,
    FLOPS,
    MOMENT,
    NAME,
    NAMES,
    RATE,
    SHARE,
    Declared,
    Field,
    Flag,
    Quantity,
    Schema,
    as_number,
    as_texts,
    declared,
    duration,
    duration_with_unit,
)
from poise.model.jobs import IfIdle, Lease, terminal_size
from poise.model.notices import TARGETS, Moment
from poise.model.recurring import Overlap
from poise.model.secrets import MAX_SECRETS, OURS
from poise.model.sweep import SweepSpec
from poise.units import SECOND, format_duration

Command = str | list[str]
PriorityName = Literal["urgent", "high", "medium", "low"]

MAX_TASKS = 10_000
"""Maximum number of tasks of one job that exist at once: accepting ten times as many takes 3 s, after which a local
node counts as lost. The parts of a larger job are made one after the other (`model/arrays.py`).
"""

LEAST_IDLE = 1 * SECOND
"""Use is measured ten times within the limit, and each measurement reads /proc."""

LEAST_HANG = 1 * SECOND
"""`poise.step` reports progress at most every 100 ms, and a busy machine may delay that."""

PHASES = ("initial", "convergence", "fine-tuning")

COUNT: Schema = {"type": "integer", "minimum": 1, "maximum": MAX_TASKS}
COUNT_OR_NONE = COUNT | {"minimum": 0}
PARTS_OR_NONE: Schema = {"type": "integer", "minimum": 0, "maximum": MAX_PARTS}
_SECRET: Schema = {"type": "string", "pattern": f"^(?!{OURS})[A-Za-z_][A-Za-z0-9_]{{0,127}}$"}
_SWEPT: Schema = {"pattern": "^[a-z][a-z0-9_]{0,62}$"}
_SCALAR: Schema = {"type": ["string", "number", "boolean"]}
_VALUES: Schema = {
    "anyOf": [
        {"type": "string", "pattern": r"^\s*-?[0-9]{1,12}\s*\.\.\s*-?[0-9]{1,12}\s*(?::\s*[0-9]{1,12}\s*)?$"},
        {"type": "array", "items": _SCALAR, "minItems": 1},
    ],
    "examples": ["1..5"],
}
_SWEEP: Schema = {
    "anyOf": [
        {
            "type": "object",
            "propertyNames": _SWEPT,
            "properties": {"zip": {"type": "object", "propertyNames": _SWEPT, "additionalProperties": _VALUES}},
            "additionalProperties": _VALUES,
            "minProperties": 1,
        },
        {
            "type": "array",
            "items": {"type": "object", "propertyNames": _SWEPT, "additionalProperties": _SCALAR},
            "minItems": 1,
        },
    ]
}
SECRETS: Schema = {
    "anyOf": [
        {"type": "array", "items": _SECRET, "maxItems": MAX_SECRETS},
        {
            "type": "object",
            "propertyNames": _SECRET,
            "additionalProperties": {
                "anyOf": [
                    {
                        "type": "object",
                        "properties": {"file": {"type": "string", "minLength": 1}},
                        "required": ["file"],
                        "additionalProperties": False,
                    },
                    {"type": "null"},
                ]
            },
            "maxProperties": MAX_SECRETS,
        },
    ]
}
_WORKERS: Schema = {
    "anyOf": [
        COUNT,
        {"type": "string", "pattern": r"^\s*[0-9]{1,6}(?:\s*\.\.\s*[0-9]{1,6})?\s*$", "examples": ["2..8"]},
    ]
}


# --- conversion of flags and quantities ------------------------------------------------------------------------------


def _hang(value: Quantity, field: str) -> int:
    """Parse the hang limit in nanoseconds; 0: not watched."""
    hang = duration(value, field)
    if 0 < hang < LEAST_HANG:
        need, have = f"{format_duration(LEAST_HANG)} or more, or 0", shown(value)
        raise SpecError("this time is too short to detect a hang", code="E103", field=field, need=need, have=have)
    return hang


def _weight(weight: float, field: str) -> int:
    """Convert a business weight to thousandths."""
    if not 0.001 <= weight <= 1000:
        raise SpecError("the weight is out of range", code="E103", field=field, need="0.001 to 1000", have=str(weight))
    return round(weight * 1000)


_SIZE = re.compile(r"\s*([0-9]{1,4})\s*x\s*([0-9]{1,4})\s*")


def terminal(value: bool | str, field: str) -> int:
    """Return the size of a terminal as the ledger stores it; 0: none."""
    if isinstance(value, bool):
        return terminal_size(24, 80) if value else 0
    size = _SIZE.fullmatch(value)
    if size is None or not int(size[1]) or not int(size[2]):
        need = "true, or its size: ROWSxCOLUMNS"
        raise SpecError(
            "this is not the size of a terminal", code="E103", field=field, need=need, have=value, hint="tty: 24x80"
        )
    return terminal_size(int(size[1]), int(size[2]))


_NAME = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_IMAGE = re.compile(
    rf"(?:[A-Za-z0-9][A-Za-z0-9.-]*(?::[0-9]{{1,5}})?/)?{_NAME}(?:/{_NAME})*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
)
_TRANSPORT = re.compile(
    r"(?:atomic|containers-storage|dir|docker|docker-(?:archive|daemon)|oci|oci-archive|sif|tarball):"
)
"""Prefixes with which podman does not get an image from a registry, but from files or from images that others have
pulled.
"""


def _image(value: str, field: str) -> str:
    """Check the name of an image."""
    if len(value) > 512 or not _IMAGE.fullmatch(value) or _TRANSPORT.match(value):
        need = "REGISTRY/NAME:TAG"
        raise SpecError("this is not the name of an image", field=field, need=need, have=value[:80], hint="python:3.12")
    return value


def _whether(value: bool, field: str) -> bool:
    return value


def _not(given: bool, environ: Mapping[str, str]) -> bool:
    return not given


def _variables(given: tuple[str, ...], environ: Mapping[str, str]) -> dict[str, str | None]:
    """Parse `--env`: `NAME=VALUE` sets a variable, `NAME` takes the caller's value."""
    pairs = [one.partition("=") for one in given]
    return {name: value if equals else environ.get(name) for name, equals, value in pairs}


def _secrets(given: tuple[str, ...], environ: Mapping[str, str]) -> dict[str, Any]:
    """Parse `--secret`: `NAME` takes the caller's value, `NAME=@FILE` the value in a file."""
    made: dict[str, Any] = {}
    for one in given:
        name, equals, source = one.partition("=")
        if not name or source == "@" or name in made:
            what = "the secret has no name" if not name else "the secret is given twice"
            what = "the file of the secret is missing" if source == "@" else what
            hint = f"--secret {name or 'HF_TOKEN'}=@FILE"
            raise SpecError(what, field="--secret", need="NAME or NAME=@FILE", have=one.partition("=")[0], hint=hint)
        if equals and source[:1] != "@":
            what = "a value on the command line can be read in the shell's history and by other users"
            raise SpecError(
                what, field="--secret", need="NAME or NAME=@FILE", have=f"{name}=…", hint=f"--secret {name}"
            )
        made[name] = {"file": source[1:]} if equals else None
    return made


def _swept(given: tuple[str, ...], environ: Mapping[str, str]) -> dict[str, Any]:
    """Parse `--sweep`: `lr=0.1,0.01` is a list, `seed=1..5` a range."""
    made: dict[str, Any] = {}
    for one in given:
        name, equals, values = one.partition("=")
        words = values.split(",")
        if not equals or not all(words) or name in made or (len(words) > 1 and any(".." in word for word in words)):
            what = "a name is swept twice" if name in made else "the values of a sweep cannot be read"
            need = "NAME=0.1,0.01 or NAME=1..5"
            raise SpecError(what, field="--sweep", need=need, have=one, hint="--sweep lr=0.1,0.01 --sweep seed=1..5")
        made[name] = values if ".." in values else words
    return made


def _nodes(given: tuple[str, ...], environ: Mapping[str, str]) -> list[str]:
    """Parse `--node a --node b`, or `--node a,b`; an empty value means no nodes."""
    return [name for one in given for name in one.split(",") if name]


def _labels(given: tuple[str, ...], environ: Mapping[str, str]) -> dict[str, list[str]]:
    """Parse `--label`: `zone=eu` requires a value, `zone=eu,us` one of two, `zone!=eu` excludes a value."""
    made: dict[str, list[str]] = {}
    for one in given if given != ("",) else ():
        name, equals, values = one.partition("=")
        if not equals or not name.removesuffix("!") or not all(values.split(",")):
            need, hint = "NAME=VALUE or NAME!=VALUE", "--label zone=eu"
            raise SpecError("the label cannot be read", field="--label", need=need, have=one, hint=hint)
        sign = "!" if name.endswith("!") else ""
        made.setdefault(name.removesuffix("!"), []).extend(f"{sign}{value}" for value in values.split(","))
    return made


def _retries(given: str, environ: Mapping[str, str]) -> dict[str, Any]:
    return {"limit": as_number(given, environ)}


# --- records ---------------------------------------------------------------------------------------------------------


class ResourcesSpec(msgspec.Struct, forbid_unknown_fields=True):
    """Resources of each task. Memory is reserved and limited, if it is set."""

    cpu: Annotated[
        Quantity,
        Field(
            "CPUs: `2`, `0.5` or `500m`. Whole CPUs are pinned to separate cores.",
            example="4",
            form=CPU,
            flag=Flag("--cpu", "N", "CPUs for each task, e.g. 4, 0.5 or 500m. [default: 1]", as_number),
            python=True,
        ),
    ] = 1
    memory: Annotated[
        Quantity,
        Field(
            "Reserved and limited: `8GiB`. 0 reserves nothing and limits nothing.",
            example="8GiB",
            form=BYTES,
            flag=Flag("--memory", "BYTES", "Memory for each task, reserved and limited, e.g. 8GiB.", as_number),
            python=True,
        ),
    ] = 0
    gpu: Annotated[
        int,
        Field(
            "Devices.",
            example="1",
            form={"minimum": 0, "maximum": 1024},
            flag=Flag("--gpu", "N", "Whole devices for each task.", as_number, short="-g"),
            python=True,
        ),
    ] = 0
    gpu_memory: Annotated[
        Quantity,
        Field(
            "Memory that each of these devices must have; for a share, the memory that it takes. A device of 80 GB "
            "has `80GB`, not `80GiB`.",
            example="12GiB",
            form=BYTES,
            flag=Flag("--gpu-memory", "BYTES", "Memory that each device must have, e.g. 12GiB.", as_number),
            python=True,
        ),
    ] = 0
    gpu_share: Annotated[
        float,
        Field(
            "Fraction of each device's compute; others can use the rest, up to the device's `share_cap` (0.8 by "
            "default). 1 is a whole device.",
            example="0.5",
            form={"exclusiveMinimum": 0, "maximum": 1},
            flag=Flag("--gpu-share", "PART", "Fraction of each device's compute, e.g. 0.5.", as_number),
            python=True,
        ),
    ] = 1.0
    gpu_kind: Annotated[
        str,
        Field(
            "`gpu`, `npu`, or a kind of the fleet.",
            example="npu",
            flag=Flag("--gpu-kind", "KIND", "Kind of the devices: gpu, npu, or a kind of the fleet."),
            python=True,
        ),
    ] = "gpu"
    gpu_model: Annotated[
        str | list[str],
        Field(
            "Acceptable models; `A100` matches every A100.",
            example="[H100, A100-80]",
            form={"examples": [entry.name for entry in CATALOGUE if entry.memory]},
            flag=Flag(
                "--gpu-model", "MODEL", "Only devices of this model. Repeatable.", reads=as_texts, repeatable=True
            ),
            python=True,
        ),
    ] = []
    backend: Annotated[
        str,
        Field(
            "The backend that the command was built for: `cuda`, `rocm`, `cann`. Only devices with this backend are "
            "used.",
            example="cuda",
            flag=Flag("--backend", "NAME", "Backend that the command was built for: cuda, rocm, cann."),
            python=True,
        ),
    ] = ""
    precision: Annotated[
        Literal["", "fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8"],
        Field(
            "Precision of the computation. A device that lacks it uses the next wider one, as below.",
            example="fp16",
            flag=Flag(
                "--precision", "NAME", "Precision of the computation, e.g. fp16; a wider one if a device lacks it."
            ),
            python=True,
        ),
    ] = ""
    node: Annotated[
        str | list[str],
        Field(
            "Allowed nodes, by name.",
            example="[gpu-1, gpu-2]",
            form={"examples": ["gpu-1"]},
            flag=Flag("--node", "NODE", "Run on this node. Repeatable: any of them.", reads=_nodes, repeatable=True),
            python=True,
        ),
    ] = []
    exclude_node: Annotated[
        str | list[str],
        Field(
            "Excluded nodes, by name.",
            example="[gpu-7]",
            form={"examples": ["gpu-7"]},
            flag=Flag("--exclude-node", "NODE", "Never run on this node. Repeatable.", reads=_nodes, repeatable=True),
            python=True,
        ),
    ] = []
    label: Annotated[
        dict[str, Any],
        Field(
            "Labels that its node must have, with their values: `{zone: eu}`, or `{zone: [eu, us]}` for any of these. "
            "A value that begins with `!` excludes nodes with that value. `zone` and `rack` of a node are labels.",
            example="{zone: eu}",
            form={
                "propertyNames": NAMES,
                "additionalProperties": {"anyOf": [_SCALAR, {"type": "array", "items": _SCALAR, "minItems": 1}]},
            },
            flag=Flag(
                "--label",
                "NAME=VALUE",
                "Run on nodes with this label; NAME!=VALUE: on others. Repeatable.",
                reads=_labels,
                repeatable=True,
                example="zone=eu",
            ),
            python=True,
        ),
    ] = {}
    spread: Annotated[
        str,
        Field(
            "A label: each task of the gang runs on another value of it. `zone`, `rack` and `node` are labels too.",
            example="zone",
            form={"pattern": NAMES["pattern"]},
            flag=Flag("--spread", "LABEL", "Run each task of a gang on another zone, rack, node or other label."),
            python=True,
        ),
    ] = ""
    together: Annotated[
        str,
        Field(
            "A label: all tasks of the gang run on one value of it, whichever has room.",
            example="rack",
            form={"pattern": NAMES["pattern"]},
            flag=Flag("--together", "LABEL", "Run all tasks of a gang on one zone, rack, node or other label."),
            python=True,
        ),
    ] = ""
    ops: Annotated[list[str], Field("Operators that the device must support.", example="[matmul]", python=True)] = []
    network: Annotated[
        Quantity,
        Field(
            "Bandwidth to reserve of the node's network: `10Gbit`.",
            example="10Gbit",
            form=RATE,
            flag=Flag("--network", "RATE", "Network bandwidth for each task, e.g. 10Gbit.", as_number),
            python=True,
        ),
    ] = 0


class RetrySpec(msgspec.Struct, forbid_unknown_fields=True):
    """Retry at most `limit` times, with a doubling `backoff`, after these outcomes."""

    limit: Annotated[
        int,
        msgspec.Meta(ge=0, le=1000),
        Field("Number of retries, 0 to 1000. 0: the task is started once, even if it is lost.", example="3"),
    ] = 3
    backoff: Annotated[
        Quantity,
        Field(
            "Pause before the first retry; it doubles with each one, up to a minute.",
            example="1s",
            form=DURATION,
            flag=Flag(
                "--backoff",
                "TIME",
                "Pause before the first retry; it doubles with each one, up to 1m. Alone it implies --retries 3. "
                "[default: 1s]",
            ),
        ),
    ] = "1s"
    when: Annotated[
        list[Literal["failed", "killed", "signal", "oom", "hung", "timeout", "lost"]] | None,
        Field(
            "Outcomes to retry. By default all except `timeout`; lost work is then retried at once, 3 times or "
            "`limit` times, whichever is larger, and does not count against the `limit`. Outcomes that you name "
            "count. After `oom`, at most two retries.",
            example="[lost, killed]",
        ),
    ] = None


class WorkersSpec(msgspec.Struct, forbid_unknown_fields=True):
    """An elastic gang: it starts with at least `min` tasks, and can use `max`."""

    min: Annotated[int, Field("Minimum number of tasks.", example="2", form=COUNT)]
    max: Annotated[int, Field("Maximum number of tasks.", example="8", form=COUNT)]


class SplitSpec(msgspec.Struct, forbid_unknown_fields=True):
    """Cut `items` into parts of `size` items each; with `auto`, the size follows the load and the balance of the fleet,
    within these limits.
    """

    items: Annotated[
        int,
        Field(
            "The number of items. Each part gets its own range, from `POISE_ITEMS_FROM` to `POISE_ITEMS_TO`.",
            example="1000",
            form={"minimum": 1},
        ),
    ]
    size: Annotated[
        int | Literal["auto"],
        Field(
            "Items in a part. `auto`: at most 10, fewer on a busy or uneven fleet, and even fewer if a deadline "
            "requires it.",
            example="50",
            form={"anyOf": [{"type": "integer", "minimum": 1}, {"const": "auto"}]},
        ),
    ] = "auto"
    min: Annotated[int, Field("Minimum for `auto`.", form={"minimum": 1})] = 1
    max: Annotated[int, Field("Maximum for `auto`.", form={"minimum": 1})] = MAX_TASKS


class WorkSpec(msgspec.Struct, forbid_unknown_fields=True):
    """Work of one task: operations, bytes of device memory traffic, bytes of its input and of its model."""

    flops: Annotated[Quantity, Field("Floating-point operations: `2 PFLOP`.", example="2 PFLOP", form=FLOPS)] = 0
    bytes: Annotated[Quantity, Field("Bytes of device memory traffic.", example="300GB", form=BYTES)] = 0
    input: Annotated[Quantity, Field("Bytes of input.", example="4GB", form=BYTES)] = 0
    model: Annotated[Quantity, Field("Bytes of its model.", example="13GB", form=BYTES)] = 0


class CheckpointSpec(msgspec.Struct, forbid_unknown_fields=True):
    """Interval between checkpoints, and duration of a restore."""

    every: Annotated[Quantity, Field("Time between two checkpoints.", example="5m", form=DURATION)]
    restore: Annotated[Quantity, Field("Time to resume from a checkpoint.", example="30s", form=DURATION)] = 0


class DeadlineSpec(msgspec.Struct, forbid_unknown_fields=True):
    """Time by which the work must be done, and the action if that is impossible."""

    by: Annotated[Quantity, Field("A duration from submission, or a time with its zone.", example="30m", form=MOMENT)]
    if_late: Annotated[
        IfLate,
        Field(
            "Action for work whose deadline cannot be met. `run`: it runs as work without a deadline. `cancel`: Poise "
            "cancels it, the tasks that need it, and the tasks that only it needs. `refuse`: Poise refuses the "
            "submission unless "
            "the deadline is likely to be met.",
            example="cancel",
            flag=Flag(
                "--if-late",
                "WORD",
                "Action when the deadline cannot be met: refuse the job, run it anyway, or cancel it. [default: run]",
            ),
        ),
    ] = msgspec.field(name="if-late", default="run")


class IdleSpec(msgspec.Struct, forbid_unknown_fields=True):
    """Time without use after which a session is suspended or ended."""

    after: Annotated[
        Quantity,
        Field(
            "Time without input, CPU use, device use and file writes: 1 s or more.",
            example="30m",
            form=DURATION,
        ),
    ]
    then: Annotated[
        IfIdle,
        Field(
            "`suspend`: its processes are stopped and it keeps only its memory, until somebody uses it again. If one "
            "of its processes has a device open, it ends instead. `end`: it ends, and its outcome is `timeout`.",
            example="end",
            flag=Flag("--if-idle", "WORD", "Action for an idle session: suspend or end it. [default: suspend]"),
        ),
    ] = "suspend"


class PhaseSpec(msgspec.Struct, forbid_unknown_fields=True):
    """Resources of a task while its training is in a phase: a maximum of CPUs, and a part of the requested device
    memory, or of the memory of each device.
    """

    cpu: Annotated[
        Quantity | None, Field("Maximum number of CPUs in this phase; by default the CPUs of the task.", form=CPU)
    ] = None
    device_memory: Annotated[
        Quantity,
        Field(
            "Fraction of the requested device memory, or of each of its devices: `60%`. The command finds it in "
            "`POISE_DEVICE_MEMORY`.",
            example="60%",
            form=SHARE,
        ),
    ] = 1


class ArtifactSpec(msgspec.Struct, forbid_unknown_fields=True):
    """A command of the same work for one backend. By default it requests the `resources` of the task."""

    run: Annotated[Command, Field("As in a task.")]
    resources: Annotated[ResourcesSpec | None, Field("Instead of the task's.")] = None


class TaskSpec(msgspec.Struct, forbid_unknown_fields=True):
    """One command and its requirements. A list is executed directly; a string goes through `sh -c`."""

    run: Annotated[
        Command,
        Field("A list is executed directly; a string goes through `/bin/sh -c`.", example="[python, train.py]"),
    ] = ""
    needs: Annotated[list[str], Field("Tasks of the same graph that must be done first.", example="[prepare]")] = []
    resources: Annotated[
        ResourcesSpec,
        Field("Resources of one task while it runs. See below.", example="{cpu: 4, memory: 8GiB, gpu: 1}"),
    ] = msgspec.field(default_factory=ResourcesSpec)
    env: Annotated[
        dict[str, Any],
        Field(
            "Environment variables. Numbers arrive as written; `null` takes the value from the submitter.",
            example="{SEED: 1}",
            form={
                "propertyNames": {"pattern": "^[A-Za-z_][A-Za-z0-9_]*$"},
                "additionalProperties": {"type": ["string", "number", "null"]},
            },
            flag=Flag(
                "--env",
                "NAME[=VALUE]",
                "Set or pass on an environment variable. Repeatable.",
                reads=_variables,
                repeatable=True,
                in_service=True,
            ),
            inherited=True,
            python=True,
        ),
    ] = {}
    secrets: Annotated[
        list[str] | dict[str, Any],
        Field(
            "Environment variables with encrypted values: neither the log nor any command shows them. A name takes "
            "the value from the submitter's environment, `{NAME: {file: PATH}}` from a file, without the final line "
            "ends. In a graph, the secrets of the job are for all tasks.",
            example="[HF_TOKEN]",
            form=SECRETS,
            flag=Flag(
                "--secret",
                "NAME[=@FILE]",
                "Pass on a variable with an encrypted value, from your environment, FILE or `-`. Repeatable.",
                reads=_secrets,
                repeatable=True,
                in_service=True,
                example="HF_TOKEN",
            ),
            inherited=True,
            python=True,
        ),
    ] = []
    priority: Annotated[
        PriorityName | None,
        Field(
            "Priority class of the task. In a graph, the job's class is the default of its tasks. `medium` by default.",
            example="high",
            flag=Flag("--priority", "CLASS", "urgent, high, medium or low.", in_service=True),
            inherited=True,
            python=True,
        ),
    ] = None
    deadline: Annotated[
        Quantity | DeadlineSpec | None,
        Field(
            "A duration from submission (`30m`) or a time with its zone (`2026-12-01T12:00:00Z`); or a mapping.",
            example="30m",
            form=MOMENT,
            flag=Flag("--deadline", "TIME", "Time by which it must be done: 30m, or 2026-12-01T12:00:00Z."),
            inherited=True,
            python=True,
        ),
    ] = None
    expect: Annotated[
        Quantity | None,
        Field(
            "Estimated run time. Once runs of its class have finished, both count. For an elastic gang, the run time "
            "with its minimum of workers. It does not apply to the `merge`.",
            example="10m",
            form=DURATION,
            flag=Flag("--expect", "TIME", "Estimated run time; runs of its class correct it."),
            read=duration,
        ),
    ] = None
    workers: Annotated[
        int | str | WorkersSpec,
        Field(
            "A gang: this many tasks, started together or not at all. `2..8` or `{min: 2, max: 8}` is elastic: it "
            "starts with at least the minimum, and grows or shrinks at a checkpoint.",
            example="2",
            form=_WORKERS,
            flag=Flag("--workers", "N", "A gang of N tasks that start together; 2..8: elastic.", as_number),
            calls=False,
            python=True,
        ),
    ] = 1
    parts: Annotated[
        int,
        Field(
            "Cut by data into this many tasks; each finds its number in `POISE_PART`, the count in `POISE_PARTS`.",
            example="4",
            form=PARTS_OR_NONE,
            flag=Flag("--parts", "N", "Cut by data: N tasks, each with its POISE_PART of POISE_PARTS.", as_number),
        ),
    ] = 0
    split: Annotated[
        SplitSpec | None,
        Field(
            "Cut by data into one task per part of the items. See below.",
            example="{items: 1000, size: auto}",
            calls=False,
        ),
    ] = None
    sweep: Annotated[
        SweepSpec | None,
        Field(
            "One task for each combination of these values. See below. `${lr}` or `{lr}` in `run` and `env` stands for "
            "the value, which is also in `POISE_SWEEP_LR`.",
            example="{lr: [0.1, 0.01], seed: 1..5}",
            form=_SWEEP,
            flag=Flag(
                "--sweep",
                "NAME=VALUES",
                "One task per value, `0.1,0.01` or `1..5`; {NAME} in the command stands for the value. Repeatable: "
                "one task per combination. JSON that a task writes to $POISE_RESULT is in the table of `poise show`.",
                reads=_swept,
                repeatable=True,
            ),
            calls=False,
        ),
    ] = None
    at_most: Annotated[
        int,
        Field(
            "Maximum number of parts, or tasks of a sweep, to run concurrently. 0: no limit.",
            example="4",
            form=PARTS_OR_NONE,
            flag=Flag("--at-most", "N", "Maximum number of parts or sweep tasks to run concurrently.", as_number),
            calls=False,
        ),
    ] = 0
    merge: Annotated[
        Command | None,
        Field(
            "A command that runs once every part is done, with the same resources. A task that needs this one waits "
            "for the merge, and a deadline applies to both. Its run time is learned; to set other fields, make it a "
            "task of a graph.",
            example="[python, merge.py]",
            calls=False,
        ),
    ] = None
    retry: Annotated[
        RetrySpec | None,
        Field(
            "The failures to retry. See below. Without it: `killed` and `hung` 3 times, lost work 3 times in addition.",
            example="{limit: 3, backoff: 1s, when: [lost]}",
            flag=Flag(
                "--retries",
                "N",
                "Retry any failure up to N times, after a pause (--backoff); lost work does not count. "
                "[default: 3, only after killed or hung]",
                reads=_retries,
                example="3",
            ),
        ),
    ] = None
    hang: Annotated[
        Quantity,
        Field(
            "Kill the task as hung after this long without progress: the command reports progress by touching the file "
            "`$POISE_PROGRESS` (`poise.step()` in Python). 0: not watched; else 1 s or more.",
            example="60s",
            form=DURATION,
            flag=Flag("--hang", "TIME", "Kill the task as hung after this long without touching $POISE_PROGRESS."),
            read=_hang,
            calls=False,
            python=True,
        ),
    ] = 0
    time_limit: Annotated[
        Quantity,
        Field(
            "Maximum run time of one attempt (walltime), from the start of its command: `2h`. Then it gets SIGTERM, "
            "after its `grace` SIGKILL, and its outcome is `timeout`. Poise plans with the limit if there is no other "
            "estimate of the run time. It applies to each task of a gang, each part, and the `merge`. 0: no limit.",
            example="2h",
            form=DURATION,
            flag=Flag(
                "--time-limit", "TIME", "Stop the task when it has run this long (walltime), e.g. 2h. [default: none]"
            ),
            read=duration_with_unit,
            calls=False,
            python=True,
        ),
    ] = msgspec.field(name="time-limit", default=0)
    idle: Annotated[
        Quantity | IdleSpec,
        Field(
            "Suspend the task after this long without use: `30m`; or a mapping. A notice in its terminal comes first. "
            "It is in use while it gets input, while its processes use more than 3 % of a core or write files, and "
            "while its devices are busy. Only for a single task. 0: never.",
            example="30m",
            form=DURATION,
            flag=Flag("--idle", "TIME", "Suspend the task after this long without use."),
            calls=False,
        ),
    ] = 0
    stdin: Annotated[
        bool,
        Field(
            "Keep standard input open for `poise attach` and other clients that send input. Without it, the command's "
            "input is empty. In a gang, rank 0 gets the input.",
            example="true",
            flag=Flag("--interactive", "", "Keep standard input open.", short="-i"),
            read=_whether,
            calls=False,
        ),
    ] = False
    output: Annotated[
        str,
        Field(
            "A file on the node, relative to the folder of the job, that gets a copy of both output streams while the "
            "command writes them. `%j` stands for the id of the job, `%t` for the task, `%r` for the rank or the "
            "number of the part, `%a` for the attempt, `%%` for `%`. `{lr}` stands for a value of a `sweep`. A retry "
            "appends, unless `%a` is in the name. It does not apply to the `merge`. `poise logs` shows the output as "
            "well.",
            example="out/%j.log",
            flag=Flag("--output", "FILE", "Copy the output to a file: %j job, %t task, %r rank, %a attempt."),
            calls=False,
        ),
    ] = ""
    tty: Annotated[
        bool | str,
        Field(
            "Run the command in a pseudo-terminal, for both output streams: `true` for 24 rows of 80 columns, or the "
            "size, `50x120`. A task with a terminal is not preempted, and not retried unless `retry` is set, because "
            "typed input cannot be repeated. In a gang, rank 0 has the terminal.",
            example="true",
            form={"anyOf": [{"type": "boolean"}, {"type": "string", "pattern": _SIZE.pattern}]},
            flag=Flag("--tty", "", "Run the command in a pseudo-terminal.", short="-t"),
            read=terminal,
            calls=False,
        ),
    ] = False
    image: Annotated[
        str,
        Field(
            "Run the command [in a container](../how-to/run-in-a-container.md) of this image. Only nodes that run "
            "containers take it: those with podman, and those of a Kubernetes cluster.",
            example="python:3.12",
            form={"pattern": f"^(?:{_IMAGE.pattern})?$"},
            flag=Flag("--image", "IMAGE", "Run the command in a container of this image."),
            read=_image,
            calls=False,
        ),
    ] = ""
    grace: Annotated[
        Quantity | None,
        Field(
            "Time between SIGTERM and SIGKILL when the task is stopped: 10s, or 1s with `lease: exclusive`.",
            example="10s",
            form=DURATION,
            flag=Flag("--grace", "TIME", "Time between SIGTERM and SIGKILL when it is stopped. [default: 10s]"),
        ),
    ] = None
    lease: Annotated[
        Lease,
        Field(
            "When it may be placed again although it may still run on a silent node: `fenced`, at once; `exclusive`, "
            "when its node has certainly stopped it.",
            example="exclusive",
            flag=Flag("--lease", "CLASS", "fenced, or exclusive: no two copies at once, even if cut off."),
        ),
    ] = "fenced"
    artifacts: Annotated[
        dict[str, ArtifactSpec],
        Field(
            "Builds of the same work for several backends, by name (`cuda`, `rocm`, `cann`, `cpu`), instead of `run`. "
            "Poise starts the one with the earliest expected end.",
            example="{cuda: {run: ./train-cuda}, cpu: {run: ./train}}",
            form={"propertyNames": NAMES},
        ),
    ] = {}
    work: Annotated[
        WorkSpec | None,
        Field(
            "The amount of work of one task, for an estimate without measurements. See below.",
            example="{flops: 2 PFLOP, bytes: 300GB}",
        ),
    ] = None
    checkpoint: Annotated[
        Quantity | CheckpointSpec | None,
        Field(
            "Checkpoint interval, or a mapping. Preempted work loses its progress since the last checkpoint.",
            example="5m",
            form=DURATION,
            flag=Flag("--checkpoint", "TIME", "Checkpoint interval; sets the cost of preemption."),
        ),
    ] = None
    phases: Annotated[
        Literal["auto"] | dict[str, PhaseSpec],
        Field(
            "Resources for each phase that its training reports: `initial`, `convergence` or `fine-tuning`; or "
            "`auto`. See below.",
            example="{convergence: {cpu: 8, device_memory: 60%}, fine-tuning: {cpu: 4, device_memory: 30%}}",
            form={
                "anyOf": [
                    {"const": "auto"},
                    {
                        "type": "object",
                        "propertyNames": {"enum": list(PHASES)},
                        "additionalProperties": {"$ref": "#/$defs/PhaseSpec"},
                    },
                ]
            },
        ),
    ] = {}
    preemptible: Annotated[
        bool,
        Field(
            "Allow preemption by more urgent work. `true` by default.",
            example="false",
            flag=Flag("--no-preempt", "", "Never preempt it.", reads=_not),
        ),
    ] = True
    weight: Annotated[
        float,
        Field(
            "Business weight, for policies that use it.",
            example="2.5",
            form={"minimum": 0.001, "maximum": 1000},
            flag=Flag("--weight", "N", "Business weight, for policies that use it. [default: 1]", as_number),
            read=_weight,
            python=True,
        ),
    ] = 1.0
    serves: Annotated[
        str,
        Field(
            "For a replica, which runs until it is stopped: its service, and the reason for its start. Work of lower "
            "classes makes room for it at once, and shorter work does not preempt it. `poise serve` sets it for its "
            "replicas.",
            example="digits",
        ),
    ] = ""
    class_: Annotated[
        str,
        Field(
            "Tasks of one class share learned run times.",
            example="resnet",
            flag=Flag("--class", "NAME", "Class of the work; work of one class shares learned run times."),
        ),
    ] = msgspec.field(name="class", default="")


class SentSpec(msgspec.Struct, forbid_unknown_fields=True):
    """Files that a client has sent, in place of `sync: true`."""

    tree: Annotated[str, Field("SHA-256 of the manifest, in hexadecimal digits.")] = ""
    folder: Annotated[str, Field("Folder of the commands, relative to the root of the tree.")] = ""
    everywhere: Annotated[bool, Field("Use the copy also on nodes that see the original folder.")] = False


def _sync(given: str, environ: Mapping[str, str]) -> bool | str:
    """Parse `--sync`: alone it sends the working tree of the folder, `--sync=DIR` another one, `--sync=off` none."""
    return {"": True, "true": True, "off": False, "false": False}.get(given, given)


class JobSpec(TaskSpec, forbid_unknown_fields=True):
    """A whole job: the fields of a task, or `kind: graph` and `tasks`."""

    kind: Annotated[
        Literal["job", "graph"],
        Field("`job` is one command; `graph` is a mapping of `tasks`.", example="graph", calls=False),
    ] = "job"
    name: Annotated[
        str,
        Field(
            "Unique among unfinished jobs. Commands take it in place of the id.",
            example="train-1",
            form={"pattern": f"^(?:(?!j[0-9]+$){NAME})?$"},
            flag=Flag("--name", "NAME", "A name, unique among unfinished jobs."),
            python=True,
        ),
    ] = ""
    project: Annotated[
        str,
        Field(
            "Project of the tenant that the job counts for, in fair shares and in `poise usage`.",
            example="vision",
            form={"pattern": f"^(?:{NAME})?$"},
            flag=Flag("--project", "NAME", "Project that the job counts for, in fair shares and in `poise usage`."),
            python=True,
        ),
    ] = ""
    folder: Annotated[
        str,
        Field(
            "Working folder of the commands, relative to the file's folder; by default that folder itself.",
            example="/data/experiment",
        ),
    ] = ""
    sync: Annotated[
        bool | str | SentSpec | None,
        Field(
            "Send the working tree with the job: each attempt runs in its own copy of it. `true`: the Git working tree "
            "of the folder, or else the folder; a path: that folder. `false`: send nothing. By default, a job from a "
            "Git working tree sends it if nodes of other machines have joined, and runs in the folder itself on nodes "
            "that see it.",
            example="false",
            form={"anyOf": [{"type": "boolean"}, {"type": "string", "minLength": 1}]},
            flag=Flag(
                "--sync",
                "[=DIR]",
                "Run in a copy of the working tree, which is sent to the node; =off: do not. "
                "[default: on nodes of other machines]",
                reads=_sync,
            ),
            calls=False,
        ),
    ] = None
    requirements: Annotated[
        str,
        Field(
            "A lock file in the working tree: `requirements.txt`, `uv.lock` or `pyproject.toml`, relative to its root. "
            "Each node builds a Python environment from it once; its `python` is first in the PATH of the commands. It "
            "needs `sync`.",
            example="requirements.txt",
            flag=Flag("--requirements", "FILE", "Build a Python environment from this lock file of the working tree."),
            calls=False,
        ),
    ] = ""
    after: Annotated[
        list[str],
        Field(
            "Ids or names of jobs that must be done first. If one fails, this job is skipped.",
            example="[j1]",
            flag=Flag(
                "--after",
                "JOB",
                "Start after this job (id or name) is done. Repeatable.",
                reads=as_texts,
                repeatable=True,
            ),
        ),
    ] = []
    after_any: Annotated[
        list[str],
        Field(
            "Ids or names of jobs that must be over first, with any result.",
            example="[j1]",
            flag=Flag(
                "--after-any",
                "JOB",
                "Start after this job is over, with any result. Repeatable.",
                reads=as_texts,
                repeatable=True,
            ),
        ),
    ] = msgspec.field(name="after-any", default_factory=list)
    after_failure: Annotated[
        list[str],
        Field(
            "Ids or names of jobs that must have failed first. If one is done or cancelled, this job is skipped.",
            example="[j1]",
            flag=Flag(
                "--after-failure",
                "JOB",
                "Start after this job has failed. Repeatable.",
                reads=as_texts,
                repeatable=True,
            ),
        ),
    ] = msgspec.field(name="after-failure", default_factory=list)
    begin: Annotated[
        Quantity | None,
        Field(
            "Earliest start: a duration from submission (`2h`) or a time with its zone (`2026-12-01T02:00:00Z`).",
            example="2h",
            form=MOMENT,
            flag=Flag("--begin", "TIME", "Earliest start: 2h from now, or 2026-12-01T02:00:00Z."),
        ),
    ] = None
    flexible: Annotated[
        Quantity | None,
        Field(
            "Time that the job may wait for an hour in which electricity is cleaner or cheaper (`intensity.yaml`).",
            example="12h",
            form=DURATION,
            flag=Flag("--flexible", "TIME", "Let it wait this long for cleaner or cheaper electricity, e.g. 12h."),
            read=duration,
        ),
    ] = None
    hold: Annotated[
        bool,
        Field(
            "Submit the job on hold: no task starts until `poise release`.",
            example="true",
            flag=Flag("--hold", "", "Submit it on hold, until `poise release`."),
            calls=False,
        ),
    ] = False
    notify: Annotated[
        list[str],
        Field(
            "Targets to notify: `webhook:URL`, which gets JSON, or `command:NAME`, a command of the home.",
            example="[webhook:https://hooks.example.org/poise]",
            form=TARGETS,
            flag=Flag(
                "--notify",
                "TARGET",
                "Notify webhook:URL, or command:NAME of the home. Repeatable.",
                reads=as_texts,
                repeatable=True,
            ),
            python=True,
        ),
    ] = []
    allow_failed: Annotated[
        int | str,
        Field(
            "Number of parts, or share of them, that may fail: the job is done all the same, and its `merge` runs.",
            example="5%",
            form={"anyOf": [{"type": "integer", "minimum": 0, "maximum": MAX_PARTS}, SHARE]},
            flag=Flag("--allow-failed", "N|N%", "Parts that may fail while the job still counts as done.", as_number),
            calls=False,
            python=True,
        ),
    ] = msgspec.field(name="allow-failed", default=0)
    notify_on: Annotated[
        list[Moment],
        Field(
            "When to notify: at its `start`, its `end`, or its `failure`. `[end]` by default.",
            example="[failure]",
            flag=Flag(
                "--notify-on",
                "MOMENT",
                "Notify at its start, end or failure. Repeatable. [default: end]",
                reads=as_texts,
                repeatable=True,
            ),
            python=True,
        ),
    ] = msgspec.field(name="notify-on", default_factory=list)
    every: Annotated[
        Quantity | None,
        Field(
            "Make it a schedule: submit such a job now, and again each time this much has passed.",
            example="1h",
            form=DURATION,
            flag=Flag("--every", "TIME", "Submit such a job now, and again each time this much has passed, e.g. 1h."),
            calls=False,
        ),
    ] = None
    cron: Annotated[
        str,
        Field(
            "Make it a schedule: submit such a job at the times of a cron expression. Its fields are minute, hour, day "
            "of the month, month and day of the week.",
            example="'0 3 * * *'",
            flag=Flag("--cron", "EXPRESSION", "Submit such a job at these times, e.g. '0 3 * * *': daily at 3 a.m."),
            calls=False,
        ),
    ] = ""
    time_zone: Annotated[
        str,
        Field(
            "Time zone of `cron`, by its IANA name. `UTC` by default.",
            example="Europe/Zurich",
            flag=Flag("--time-zone", "ZONE", "Time zone of --cron, e.g. Europe/Zurich. [default: UTC]"),
            calls=False,
        ),
    ] = msgspec.field(name="time-zone", default="")
    overlap: Annotated[
        Overlap | None,
        Field(
            "When a job of the schedule is due and an earlier one is unfinished: `skip` (the default) submits none, "
            "`allow` submits it, `replace` cancels the earlier one first.",
            example="replace",
            flag=Flag("--overlap", "POLICY", "If the last job of a schedule is unfinished: skip, allow or replace it."),
            calls=False,
        ),
    ] = None
    calls: Annotated[
        bool,
        Field(
            "Serve calls of functions: the `parts` are workers that start as calls arrive. `poise.task` sets it.",
            example="true",
        ),
    ] = False
    tasks: Annotated[
        dict[str, TaskSpec],
        Field("The tasks of a graph, by name.", example="{hello: {run: echo hello}}", form={"propertyNames": NAMES}),
    ] = {}


RECORDS: tuple[type[msgspec.Struct], ...] = (
    JobSpec,
    ResourcesSpec,
    RetrySpec,
    WorkersSpec,
    SplitSpec,
    WorkSpec,
    CheckpointSpec,
    DeadlineSpec,
    IdleSpec,
    PhaseSpec,
    ArtifactSpec,
    SentSpec,
)
"""Records of a job file. The fields of a task are fields of a job too."""


def records_in(kind: Any) -> Iterator[type[msgspec.Struct]]:
    """Yield the records that a field may hold instead of a value, such as `DeadlineSpec` for a deadline."""
    for one in get_args(kind) if isinstance(kind, UnionType) else (kind,):
        if isinstance(one, type) and issubclass(one, msgspec.Struct):
            yield one


def flagged() -> Iterator[tuple[str, Declared, Flag]]:
    """Yield every field of a job that has a flag, by its path, such as `resources.gpu`."""
    for name, of in declared(JobSpec).items():
        if of.field.flag is not None:
            yield name, of, of.field.flag
        for record in records_in(of.type):
            for inner, found in declared(record).items():
                if found.field.flag is not None:
                    yield f"{name}.{inner}", found, found.field.flag


def example_of(name: str) -> str:
    """Return an example for a field as a line of YAML; empty for an unknown field."""
    for record in RECORDS:
        of = declared(record).get(name)
        if of is not None and of.field.example:
            return f"{name}: {of.field.example}"
    return ""
