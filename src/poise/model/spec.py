"""What people write, and how it is compiled into a `Job`.

One shape serves files and requests: `kind: job` is one command (perhaps a gang, perhaps cut by data), `kind: graph` is
a mapping of named tasks. `compile_spec` takes the parsed document and gives integers, resolved references and expanded
tasks, or raises `SpecError` with the path of the field, what was expected and a hint.

A task with `workers: 2` becomes a gang `name` of tasks `name[0]`, `name[1]`; one with `parts: 4` becomes four units
`name[0]` … `name[3]` and, with `merge`, one more unit `name.merge` that what needs `name` then waits for.
"""

import difflib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, get_args, get_type_hints

import msgspec

from poise.errors import SpecError
from poise.model import graph
from poise.model.catalogue import models_named
from poise.model.jobs import (
    GRACE,
    NO_WORK,
    RETRY,
    WEIGHT,
    Job,
    Priority,
    Retry,
    Task,
    Unit,
    Variant,
    Work,
)
from poise.model.quotas import Quota
from poise.model.resources import ANY_GPU, PLENTY, SHARED_CAP, WHOLE, Shape, Wants
from poise.units import (
    DAY,
    SECOND,
    format_bytes,
    format_cpu,
    format_duration,
    format_rate,
    parse_bytes,
    parse_cpu,
    parse_duration,
    parse_flops,
    parse_rate,
)

Quantity = str | int | float
Command = str | list[str]
PriorityName = Literal["urgent", "high", "medium", "low"]

MAX_TASKS = 10_000
MAX_CPU = 100_000 * 1000
MAX_BYTES = 2**50
MAX_FLOPS = 2**62
MAX_DURATION = 3650 * DAY
MAX_COMMAND_BYTES = 128 * 1024
MAX_JOB_BYTES = 16 * 2**20
"""Commands and environments of all tasks together: parts multiply what a small file says."""

MAX_NEEDS = 100_000
"""Needs of all units together: parts that need parts multiply."""

MAX_TEXT = 4096
_JOB_ID = re.compile(r"j[0-9]+")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


class ResourcesSpec(msgspec.Struct, forbid_unknown_fields=True):
    """What each task asks for. Memory is reserved and limited; without it, neither.

    `gpu` counts devices of kind `gpu_kind`, of any of the models in `gpu_model`; `gpu_share` is the part of each one's
    compute. `backend` is what the command was built for (cuda, rocm, cann), `precision` what it would compute in, `ops`
    the operators it needs. `network` is bandwidth.
    """

    cpu: Quantity = 1
    memory: Quantity = 0
    gpu: int = 0
    gpu_memory: Quantity = 0
    gpu_share: float = 1.0
    gpu_kind: str = "gpu"
    gpu_model: str | list[str] = []
    backend: str = ""
    precision: Literal["", "fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8"] = ""
    ops: list[str] = []
    network: Quantity = 0


class QuotaSpec(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """What the work of a user may hold at once; what is not named has no bound."""

    cpu: Quantity | None = None
    memory: Quantity | None = None
    gpu: Quantity | None = None


class RetrySpec(msgspec.Struct, forbid_unknown_fields=True):
    """Try again at most `limit` times, `backoff` doubling, after these outcomes."""

    limit: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 3
    backoff: Quantity = "1s"
    when: list[Literal["failed", "killed", "signal", "oom", "lost"]] = msgspec.field(
        default_factory=lambda: ["lost", "killed"]
    )


class WorkersSpec(msgspec.Struct, forbid_unknown_fields=True):
    """An elastic gang: it starts with `min` tasks or more, and can use `max`."""

    min: int
    max: int


class SplitSpec(msgspec.Struct, forbid_unknown_fields=True):
    """Cut `items` into parts of `size` items each; `auto`: by how busy and how uneven the fleet is, in these bounds."""

    items: int
    size: int | Literal["auto"] = "auto"
    min: int = 1
    max: int = MAX_TASKS


class WorkSpec(msgspec.Struct, forbid_unknown_fields=True):
    """What one task has to do: operations, bytes of device memory it moves, bytes of its input and of its model."""

    flops: Quantity = 0
    bytes: Quantity = 0
    input: Quantity = 0
    model: Quantity = 0


class CheckpointSpec(msgspec.Struct, forbid_unknown_fields=True):
    """The work saves itself `every` so often; coming back takes `restore`."""

    every: Quantity
    restore: Quantity = 0


class ArtifactSpec(msgspec.Struct, forbid_unknown_fields=True):
    """The same work built for one backend. Without `resources` it asks for what the task asks for."""

    run: Command
    resources: ResourcesSpec | None = None


class TaskSpec(msgspec.Struct, forbid_unknown_fields=True):
    """One command and what it needs. A list is run as it is; a text goes through `sh -c`."""

    run: Command = ""
    needs: list[str] = []
    resources: ResourcesSpec = msgspec.field(default_factory=ResourcesSpec)
    env: dict[str, Any] = {}
    priority: PriorityName | None = None
    deadline: Quantity | None = None
    expect: Quantity | None = None
    workers: int | str | WorkersSpec = 1
    parts: int = 0
    split: SplitSpec | None = None
    merge: Command | None = None
    retry: RetrySpec | None = None
    grace: Quantity = "10s"
    artifacts: dict[str, ArtifactSpec] = {}
    work: WorkSpec | None = None
    checkpoint: Quantity | CheckpointSpec | None = None
    preemptible: bool = True
    weight: float = 1.0
    class_: str = msgspec.field(name="class", default="")


class JobSpec(TaskSpec, forbid_unknown_fields=True):
    """A whole job: the fields of a task, or `kind: graph` and `tasks`."""

    kind: Literal["job", "graph"] = "job"
    name: str = ""
    folder: str = ""
    after: list[str] = []
    calls: bool = False
    tasks: dict[str, TaskSpec] = {}


class _Top(TaskSpec, forbid_unknown_fields=True):
    """`JobSpec` with its tasks still raw, so that an error in one can name it."""

    kind: Literal["job", "graph"] = "job"
    name: str = ""
    folder: str = ""
    after: list[str] = []
    calls: bool = False
    tasks: dict[str, Any] = {}


class Compiled(NamedTuple):
    """A job without its id, the jobs it comes after as the user named them, and what the user is to be told of it.
    `due_by` names, by unit, the field in which its deadline was written.
    """

    name: str
    folder: str
    env: dict[str, str]
    units: tuple[Unit, ...]
    after: tuple[str, ...] = ()
    note: str = ""
    due_by: Mapping[str, str] = {}
    calls: bool = False

    def job(self, job_id: str, after: tuple[str, ...], user: str = "") -> Job:
        return Job(
            id=job_id,
            units=self.units,
            name=self.name,
            folder=self.folder,
            env=self.env,
            after=after,
            user=user,
            note=self.note,
            calls=self.calls,
        )


class Cut(NamedTuple):
    """What decides how finely work is cut: the fleet's `load` in [0, 1], its `spread` (how much faster its fastest node
    is than its slowest, less one), and how many times `finer` than that it has to be for a deadline's sake.
    """

    load: float = 0.0
    spread: float = 0.0
    finer: int = 1


def part_size(split: SplitSpec, cut: Cut) -> int:
    """Items per part: `max(1, floor(10 (1 - load)))`, so that a busy fleet gets smaller parts, over
    `1 + min(spread, 3)`, so that a slow node's last part does not hold up an uneven one, over `finer`; in its bounds.
    """
    size = max(1, int(10 * (1 - cut.load))) / (1 + min(max(0.0, cut.spread), 3.0)) / cut.finer
    least = max(split.min, -(-split.items // MAX_TASKS))
    return max(least, min(split.max, int(size)), 1)


def idle_and_even(devices: bool) -> Cut:
    """How finely work is cut where nothing is known of the fleet."""
    return Cut()


def compile_spec(document: Any, *, wall: float, cut: Callable[[bool], Cut] = idle_and_even) -> Compiled:
    """Compile a parsed file or request. `wall` (seconds since 1970) is what absolute deadlines are measured from.
    `cut` says how finely a `split` of size `auto` is cut, for work on devices (True) or on CPUs alone.
    """
    try:
        return _compile(document, wall, cut)
    except SpecError as error:
        if not error.record.hint:
            error.record = msgspec.structs.replace(error.record, hint=_example(error.record.field))
        raise


def _compile(document: Any, wall: float, cut: Callable[[bool], Cut]) -> Compiled:
    top = convert(document, _Top, JobSpec, "")
    if top.name:
        check_name(top.name, "name")
        if _JOB_ID.fullmatch(top.name):
            raise SpecError("this name looks like the id of a job", code="E107", field="name", have=top.name)
    check_text(top.folder, "folder")
    for index, other in enumerate(top.after):
        check_text(other, f"after[{index}]")
    env = _environment(top.env, "env")
    inherited = _Defaults(top.priority or "medium", _deadline(top.deadline, "deadline", wall), wall, top.name, cut)
    due_by: dict[str, str] = {}
    units = _job_units(top, inherited) if top.kind == "job" else _graph_units(top, inherited, due_by)
    due_by |= {unit.name: "deadline" for unit in units if unit.deadline and unit.name not in due_by}
    after = tuple(dict.fromkeys(top.after))
    return Compiled(top.name, top.folder, env, tuple(units), after, due_by=due_by, calls=_serves(top))


def _serves(top: _Top) -> bool:
    """Workers that serve calls are parts of one command: each is placed by itself, and takes what calls there are."""
    given = {"workers": top.workers != 1, "merge": top.merge is not None, "split": top.split is not None}
    wrong = next((name for name, is_given in given.items() if is_given), "")
    if top.calls and (top.kind == "graph" or wrong):
        raise SpecError(
            "what serves calls is one command, in as many `parts` as may run at once",
            code="E105",
            field=wrong or "kind",
            have="calls: true",
            hint="calls: true, parts: 4",
        )
    return top.calls


_EXAMPLES = {
    "run": "run: [python, train.py]",
    "merge": "merge: [python, merge.py]",
    "needs": "needs: [prepare]",
    "after": "after: [j1]",
    "name": "name: train-1",
    "folder": "folder: /data/experiment",
    "env": "env: {SEED: 1}",
    "resources": "resources: {cpu: 4, memory: 8GiB, gpu: 1}",
    "cpu": "cpu: 4",
    "memory": "memory: 8GiB",
    "gpu": "gpu: 1",
    "gpu_memory": "gpu_memory: 12GiB",
    "priority": "priority: high",
    "deadline": "deadline: 30m",
    "expect": "expect: 10m",
    "gpu_share": "gpu_share: 0.5",
    "gpu_kind": "gpu_kind: npu",
    "gpu_model": "gpu_model: [H100, A100-80]",
    "backend": "backend: cuda",
    "precision": "precision: fp16",
    "ops": "ops: [matmul]",
    "network": "network: 10Gbit",
    "workers": "workers: 2",
    "min": "workers: 2..8",
    "max": "workers: 2..8",
    "parts": "parts: 4",
    "split": "split: {items: 1000, size: auto}",
    "items": "items: 1000",
    "size": "size: 50",
    "artifacts": "artifacts: {cuda: {run: ./train-cuda}, cpu: {run: ./train}}",
    "work": "work: {flops: 2 PFLOP, bytes: 300GB}",
    "flops": "flops: 2 PFLOP",
    "bytes": "bytes: 300GB",
    "input": "input: 4GB",
    "model": "model: 13GB",
    "checkpoint": "checkpoint: 5m",
    "every": "every: 5m",
    "restore": "restore: 30s",
    "preemptible": "preemptible: false",
    "weight": "weight: 2.5",
    "retry": "retry: {limit: 3, backoff: 1s, when: [lost]}",
    "limit": "limit: 3",
    "backoff": "backoff: 1s",
    "when": "when: [lost, killed]",
    "grace": "grace: 10s",
    "class": "class: resnet",
    "calls": "calls: true",
    "kind": "kind: graph",
    "tasks": "tasks: {hello: {run: echo hello}}",
}


def _example(field: str) -> str:
    """What could stand in a field: the innermost one of its path that has a name of ours."""
    known = [part for part in re.split(r"[.\[\]]", field) if part in _EXAMPLES]
    return _EXAMPLES[known[-1]] if known else "run: echo hello"


class _Defaults(NamedTuple):
    priority: PriorityName
    deadline: int
    wall: float
    job: str
    cut: Callable[[bool], Cut]


def _job_units(top: _Top, inherited: _Defaults) -> list[Unit]:
    if top.tasks:
        raise SpecError(
            "a job has `run`, a graph has `tasks`", field="kind", have="job", need="graph", hint="add `kind: graph`"
        )
    if top.needs:
        raise SpecError(
            "`needs` belongs to the tasks of a graph", field="needs", code="E105", hint="use `after: [JOB]`"
        )
    own = msgspec.structs.replace(top, env={}, deadline=None, parts=_parts_of(top, "", inherited.cut))
    _check_size({"": own})
    return [msgspec.structs.replace(unit, deadline=inherited.deadline) for unit in _units("main", own, "", inherited)]


def _graph_units(top: _Top, inherited: _Defaults, due_by: dict[str, str]) -> list[Unit]:
    """Its units; those of tasks that have a deadline of their own are named in `due_by`."""
    if not top.tasks:
        raise SpecError("a graph has no tasks", field="tasks", code="E104", hint="tasks: {hello: {run: echo hello}}")
    for field, default in _OF_A_TASK.items():
        if getattr(top, field) != default:
            shown = field.rstrip("_")
            raise SpecError(f"a graph has `tasks`, not `{shown}`", field=shown, hint=f"move `{shown}` into the tasks")
    specs: dict[str, TaskSpec] = {}
    for name, raw in top.tasks.items():
        check_name(name, f"tasks.{name}")
        spec = convert(raw, TaskSpec, TaskSpec, f"tasks.{name}")
        specs[name] = msgspec.structs.replace(spec, parts=_parts_of(spec, f"tasks.{name}.", inherited.cut))
    _check_needs(specs)
    _check_size(specs)
    stands_for: dict[str, tuple[str, ...]] = {}
    units: list[Unit] = []
    for name, spec in specs.items():
        made = _units(name, spec, f"tasks.{name}", inherited)
        stands_for[name] = (f"{name}.merge",) if spec.merge is not None else tuple(unit.name for unit in made)
        due_by |= {unit.name: f"tasks.{name}.deadline" for unit in made if unit.deadline}
        units.extend(made)
    _check_unique(units)
    resolved = _resolve(units, specs, stands_for)
    followed = {need for unit in resolved for need in unit.needs}
    return [
        msgspec.structs.replace(unit, deadline=inherited.deadline)
        if inherited.deadline and not unit.deadline and unit.name not in followed
        else unit
        for unit in resolved
    ]


def _parts_of(spec: TaskSpec, field: str, cut: Callable[[bool], Cut]) -> int:
    """Into how many parts a task is cut: as it says, or by its items."""
    split = spec.split
    if split is None:
        return spec.parts
    if spec.parts:
        raise SpecError("a task has `parts` or a `split`, not both", field=f"{field}split", hint="drop `parts`")
    for name, value in (("items", split.items), ("min", split.min), ("max", split.max)):
        if not 1 <= value <= MAX_BYTES:
            have = shown(value)
            raise SpecError(
                "the number is out of range", code="E103", field=f"{field}split.{name}", need="1 or more", have=have
            )
    if split.size != "auto" and split.size < 1:
        need, have = "1 or more, or auto", shown(split.size)
        raise SpecError("the number is out of range", code="E103", field=f"{field}split.size", need=need, have=have)
    if split.min > split.max:
        raise SpecError("`min` is more than `max`", code="E103", field=f"{field}split.min", have=str(split.min))
    size = part_size(split, cut(spec.resources.gpu > 0)) if split.size == "auto" else split.size
    return -(-split.items // size)


def _workers(workers: int | str | WorkersSpec, field: str) -> tuple[int, int]:
    """The least and the most tasks of a gang, from `4`, `2..8` or `{min: 2, max: 8}`."""
    if isinstance(workers, WorkersSpec):
        least, most = workers.min, workers.max
    elif isinstance(workers, int):
        least = most = workers
    else:
        match = re.fullmatch(r"\s*(\d{1,6})(?:\s*\.\.\s*(\d{1,6}))?\s*", workers)
        if match is None:
            raise SpecError(
                "the number of workers cannot be read", code="E103", field=field, need="2 or 2..8", have=workers[:80]
            )
        least, most = int(match[1]), int(match[2] or match[1])
    check_count(least, 1, field)
    check_count(most, 1, field)
    if least > most:
        raise SpecError("the least is more than the most", code="E103", field=field, have=f"{least}..{most}")
    return least, most


def _check_size(specs: Mapping[str, TaskSpec]) -> None:
    """Refuse what would grow too large before it is made: a line of YAML can ask for a million tasks."""
    tasks = size = needs = 0
    for name, spec in specs.items():
        field = f"tasks.{name}." if name else ""
        _, most = _workers(spec.workers, f"{field}workers")
        check_count(spec.parts, 0, f"{field}split.size" if spec.split else f"{field}parts")
        made = max(most, spec.parts)
        tasks += made + (spec.merge is not None)
        size += made * (_length(spec.run) + sum(len(key) + _length(str(value)) for key, value in spec.env.items()))
        needs += max(1, spec.parts) * sum(1 if specs[of].merge else max(1, specs[of].parts) for of in spec.needs)
    for what, found, most in (
        ("tasks", tasks, MAX_TASKS),
        ("bytes of commands and environments", size, MAX_JOB_BYTES),
        ("needs between parts; a `merge` makes them few", needs, MAX_NEEDS),
    ):
        if found > most:
            raise SpecError(f"the job has too many {what}", code="E103", need=f"at most {most}", have=str(found))


def _check_unique(units: list[Unit]) -> None:
    """`a[0]` and `a.merge` are made from `a`: they may meet a task of that name."""
    names = [task.name for unit in units for task in unit.tasks] + [unit.name for unit in units if len(unit.tasks) > 1]
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise SpecError(
            "a name is used twice", code="E107", field=f"tasks.{twice}", have=twice, hint="rename one of them"
        )


_OF_A_TASK = {
    "run": "",
    "needs": [],
    "resources": ResourcesSpec(),
    "expect": None,
    "workers": 1,
    "parts": 0,
    "split": None,
    "merge": None,
    "retry": None,
    "grace": "10s",
    "artifacts": {},
    "work": None,
    "checkpoint": None,
    "preemptible": True,
    "weight": 1.0,
    "class_": "",
}
"""Fields of a task that mean nothing beside `tasks`; `env`, `priority` and `deadline` hold for all tasks."""


def _resolve(units: list[Unit], specs: Mapping[str, TaskSpec], stands_for: Mapping[str, tuple[str, ...]]) -> list[Unit]:
    """Needs as written name tasks of the file; needs as compiled name units. Parts share one tuple."""
    resolved = {
        name: tuple(dict.fromkeys(unit for need in spec.needs for unit in stands_for[need]))
        for name, spec in specs.items()
    }
    merges = {f"{name}.merge" for name, spec in specs.items() if spec.merge is not None}
    return [
        unit if unit.name in merges else msgspec.structs.replace(unit, needs=resolved[unit.name.partition("[")[0]])
        for unit in units
    ]


def _check_needs(specs: Mapping[str, TaskSpec]) -> None:
    for name, spec in specs.items():
        for need in spec.needs:
            if need not in specs:
                raise SpecError(
                    f"task `{name}` needs `{need}`, which is not in the graph",
                    code="E105",
                    field=f"tasks.{name}.needs",
                    have=need,
                    hint=near(need, specs) or f"the graph has: {', '.join(list(specs)[:12])}",
                )
    try:
        graph.topological_order({name: spec.needs for name, spec in specs.items()})
    except graph.CycleError as error:
        raise SpecError(
            f"the graph has a cycle: {error}",
            code="E106",
            field=f"tasks.{error.path[0]}.needs",
            hint=f"drop one of these needs, for example `{error.path[-2]}` from `tasks.{error.path[0]}.needs`",
        ) from None


def _units(name: str, spec: TaskSpec, at: str, inherited: _Defaults) -> list[Unit]:
    """The units of one task of the file: one, a gang, or parts and their merge."""
    field = f"{at}." if at else ""
    artifact, first, variants = _artifacts(spec, field)
    argv = _command(first.run, f"{field}run")
    least, most = _workers(spec.workers, f"{field}workers")
    check_text(spec.class_, f"{field}class", most=128)
    if spec.parts and most > 1:
        raise SpecError("a task is a gang or cut by data, not both", field=f"{field}parts", hint="drop `workers`")
    if spec.parts and variants:
        raise SpecError("a task has artifacts or is cut by data, not both", field=f"{field}artifacts")
    if spec.merge is not None and not spec.parts:
        raise SpecError("`merge` needs `parts`", field=f"{field}merge", hint="parts: 4")
    kind = spec.class_ or (
        f"{inherited.job}/{name}" if inherited.job and name != "main" else _class_of(argv, first.run)
    )
    env = _environment(spec.env, f"{field}env")
    checkpoint, restore = _checkpoint(spec.checkpoint, f"{field}checkpoint")
    base = Unit(
        name=name,
        tasks=(Task(name=name, argv=argv, env=env),),
        shape=_shape(first.resources or spec.resources, f"{field}resources"),
        needs=tuple(spec.needs),
        priority=Priority[(spec.priority or inherited.priority).upper()],
        deadline=_deadline(spec.deadline, f"{field}deadline", inherited.wall),
        expect=_duration(spec.expect, f"{field}expect") if spec.expect is not None else 0,
        retry=RETRY if spec.retry is None else _retry(spec.retry, f"{field}retry"),
        kind=kind,
        grace=_or(GRACE, _duration(spec.grace, f"{field}grace")),
        least=least if least < most else 0,
        artifact=artifact,
        variants=variants,
        work=_work(spec.work, f"{field}work"),
        checkpoint=checkpoint,
        restore=restore,
        preemptible=spec.preemptible,
        weight=_weight(spec.weight, f"{field}weight"),
    )
    if spec.parts:
        return _parts(base, spec, argv, env, field)
    if most > 1:
        gang = tuple(Task(name=f"{name}[{rank}]", argv=argv, env=env, rank=rank, world=most) for rank in range(most))
        return [msgspec.structs.replace(base, tasks=gang)]
    return [base]


def _artifacts(spec: TaskSpec, field: str) -> tuple[str, ArtifactSpec, tuple[Variant, ...]]:
    """The unit's own artifact, by its name, and the others; their names are the backends they were built for."""
    if not spec.artifacts:
        return "", ArtifactSpec(run=spec.run, resources=spec.resources), ()
    if spec.run:
        raise SpecError("a task has `run` or `artifacts`, not both", field=f"{field}run", hint="drop `run`")
    made: list[tuple[str, ArtifactSpec]] = []
    for name, artifact in spec.artifacts.items():
        at = f"{field}artifacts.{name}"
        check_name(name, at)
        resources = artifact.resources or spec.resources
        if name == "cpu" and resources.gpu:
            raise SpecError("the artifact for the CPU asks for devices", field=f"{at}.resources.gpu", hint="gpu: 0")
        if name != "cpu":
            resources = msgspec.structs.replace(resources, backend=resources.backend or name)
        made.append((name, ArtifactSpec(run=artifact.run, resources=resources)))
    variants = tuple(
        Variant(
            name=name,
            argv=_command(artifact.run, f"{field}artifacts.{name}.run"),
            shape=_shape(artifact.resources or spec.resources, f"{field}artifacts.{name}.resources"),
        )
        for name, artifact in made[1:]
    )
    return *made[0], variants


def _work(spec: WorkSpec | None, field: str) -> Work:
    if spec is None:
        return NO_WORK
    return Work(
        flops=parse_or_raise(parse_flops, spec.flops, f"{field}.flops", MAX_FLOPS),
        bytes=parse_or_raise(parse_bytes, spec.bytes, f"{field}.bytes", MAX_BYTES),
        input=parse_or_raise(parse_bytes, spec.input, f"{field}.input", MAX_BYTES),
        model=parse_or_raise(parse_bytes, spec.model, f"{field}.model", MAX_BYTES),
    )


def _retry(spec: RetrySpec, field: str) -> Retry:
    backoff = _duration(spec.backoff, f"{field}.backoff")
    return _or(RETRY, Retry(limit=spec.limit, backoff=backoff, when=tuple(dict.fromkeys(spec.when))))


def _checkpoint(spec: Quantity | CheckpointSpec | None, field: str) -> tuple[int, int]:
    """(interval, cost of restoring) in nanoseconds."""
    if spec is None:
        return 0, 0
    if isinstance(spec, CheckpointSpec):
        return _duration(spec.every, f"{field}.every"), _duration(spec.restore, f"{field}.restore")
    return _duration(spec, field), 0


def _weight(weight: float, field: str) -> int:
    """A business weight in thousandths."""
    if not 0.001 <= weight <= 1000:
        raise SpecError("the weight is out of range", code="E103", field=field, need="0.001 to 1000", have=str(weight))
    return _or(WEIGHT, round(weight * 1000))


def _parts(base: Unit, spec: TaskSpec, argv: tuple[str, ...], env: dict[str, str], field: str) -> list[Unit]:
    """Each part of a `split` gets its items, and its share of the work and of the run time that is expected; its class
    names how many items it has, since that is what its run time is learned by. What was said of the parts says nothing
    of the merge: of that is known what its runs tell.
    """
    units = []
    for part in range(spec.parts):
        made, items = base, {}
        if spec.split:
            first, last = part * spec.split.items // spec.parts, (part + 1) * spec.split.items // spec.parts
            items = {"POISE_ITEMS_FROM": str(first), "POISE_ITEMS_TO": str(last)}
            made = msgspec.structs.replace(
                base,
                expect=-(-base.expect // spec.parts),
                work=Work(**{name: amount // spec.parts for name, amount in msgspec.structs.asdict(base.work).items()}),
                kind=f"{base.kind}*{-(-spec.split.items // spec.parts)}",
            )
        task = Task(name=f"{base.name}[{part}]", argv=argv, env=env | items, part=part, parts=spec.parts)
        units.append(msgspec.structs.replace(made, name=task.name, tasks=(task,)))
    if spec.merge is not None:
        merge = Task(name=f"{base.name}.merge", argv=_command(spec.merge, f"{field}merge"), env=env, parts=spec.parts)
        units.append(
            msgspec.structs.replace(
                base,
                name=merge.name,
                tasks=(merge,),
                needs=tuple(unit.name for unit in units),
                kind=f"{base.kind}.merge",
                expect=0,
                work=NO_WORK,
                checkpoint=0,
                restore=0,
            )
        )
    return units


T = TypeVar("T")


def convert(document: Any, kind: type[T], shown: type[msgspec.Struct], at: str) -> T:
    try:
        return msgspec.convert(document, kind, strict=True, str_keys=True)
    except msgspec.ValidationError as error:
        raise _spec_error(str(error), shown, at) from None


def _spec_error(text: str, shown: type[msgspec.Struct], at: str) -> SpecError:
    """msgspec says `Expected X, got Y - at `$.path``; say it with the path first and a near miss."""
    message, _, path = text.replace(" - at `key` in `$", " as a key - at `$").partition(" - at `$")
    path = path.rstrip("`")
    field = ".".join(part for part in (at, path.lstrip(".")) if part)
    unknown = re.search(r"unknown field `(.+)`", message)
    if unknown:
        known = [item.encode_name for item in msgspec.structs.fields(_at(shown, path))]
        field = f"{field}.{unknown[1]}" if field else unknown[1]
        hint = near(unknown[1], known) or f"known fields: {', '.join(known)}"
        return SpecError(f"there is no field `{unknown[1]}` here", field=field, have=unknown[1], hint=hint)
    value = re.search(r"Invalid enum value '?(.+?)'?$", message)
    if value:
        known = _words(get_type_hints(_at(shown, path)).get(re.sub(r"\[.*", "", path).rpartition(".")[2]))
        hint = near(value[1], known)
        return SpecError(
            f"`{value[1]}` is not known here", field=field, have=value[1], need=", ".join(known), hint=hint
        )
    missing = re.search(r"Expected `(.+?)`(?:, got `(.+)`)?", message)
    if missing:
        what = "a key has the wrong type" if message.endswith("as a key") else "the value has the wrong type"
        return SpecError(
            what,
            field=field,
            need=missing[1] + message[missing.end() :].removesuffix(" as a key"),
            have=missing[2] or "",
        )
    return SpecError(message[:1].lower() + message[1:], field=field)


def _words(hint: Any) -> list[str]:
    """The words that a field takes."""
    if isinstance(hint, str):
        return [hint] if hint else []
    return [word for inner in get_args(hint) for word in _words(inner)]


def _at(shown: type[msgspec.Struct], path: str) -> type[msgspec.Struct]:
    inner: dict[str, type[msgspec.Struct]] = {
        "resources": ResourcesSpec,
        "retry": RetrySpec,
        "workers": WorkersSpec,
        "split": SplitSpec,
        "work": WorkSpec,
        "checkpoint": CheckpointSpec,
        "artifacts": ArtifactSpec,
    }
    named = [part for part in re.split(r"[.\[\]]", path) if part in inner]
    return inner[named[-1]] if named else shown


def near(word: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean `{close[0]}`?" if close else ""


def check_name(name: str, field: str) -> None:
    if not _NAME.fullmatch(name):
        raise SpecError(
            "a name has at most 63 letters, digits, `.`, `_` and `-`, and starts with a letter or digit",
            code="E107",
            field=field,
            have=name[:80],
        )


def check_count(value: int, least: int, field: str) -> None:
    if not least <= value <= MAX_TASKS:
        raise SpecError(
            "the number is out of range", code="E103", field=field, need=f"{least} to {MAX_TASKS}", have=shown(value)
        )


def _command(command: Command, field: str) -> tuple[str, ...]:
    argv = ("/bin/sh", "-c", command) if isinstance(command, str) and command.strip() else tuple(command)
    if (isinstance(command, str) and not command.strip()) or not argv or not argv[0]:
        raise SpecError("there is no command to run", code="E104", field=field, hint="run: [python, train.py]")
    for word in argv:
        check_text(word, field, most=MAX_COMMAND_BYTES, code="E104")
    size = sum(_length(word) for word in argv)
    if size > MAX_COMMAND_BYTES:
        raise SpecError(
            "the command is too long",
            code="E103",
            field=field,
            need=f"at most {MAX_COMMAND_BYTES} bytes",
            have=str(size),
        )
    return argv


def _class_of(argv: tuple[str, ...], command: Command) -> str:
    """A class for commands that name none: the program, and what it is given first that is no flag. So each script of
    an interpreter has a class of its own, and a text after `-c` one by its first words.
    """
    if isinstance(command, str):
        return "sh " + " ".join(command.split()[:2])[:48]
    program = argv[0].rsplit("/", 1)[-1]
    given = next((word for word in argv[1:] if not word.startswith("-")), "")
    words = given.split()[:2] if " " in given else [given.rsplit("/", 1)[-1]]
    return " ".join((program, *words)).strip()[:64]


def _environment(env: Mapping[str, Any], field: str) -> dict[str, str]:
    made: dict[str, str] = {}
    for name, value in env.items():
        at = f"{field}.{name}"
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise SpecError("this is no name for an environment variable", code="E107", field=at)
        if value is None:
            raise SpecError(
                "this variable was to come from the submitter's environment, where it is not set",
                field=at,
                hint=f"export {name}=…, or give it a value in the file",
            )
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise SpecError("the value has the wrong type", field=at, need="text or number", hint="put it in quotes")
        made[name] = str(value)
        check_text(made[name], at, most=MAX_COMMAND_BYTES)
    return made


def check_text(text: str, field: str, *, most: int = MAX_TEXT, code: str = "E102") -> None:
    """What goes to a process and into the log is UTF-8, without zero bytes, and bounded."""
    if "\0" in text:
        raise SpecError("a zero byte cannot be passed to a process", code=code, field=field)
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise SpecError("the text is not Unicode", code=code, field=field) from None
    if size > most:
        raise SpecError("the text is too long", code="E103", field=field, need=f"at most {most} bytes", have=str(size))


def _length(text: str | list[str]) -> int:
    """Bytes in UTF-8; what cannot be encoded is found by `check_text`, which names the field."""
    if isinstance(text, str):
        return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    return sum(_length(word) for word in text)


def _shape(resources: ResourcesSpec, field: str) -> Shape:
    if resources == _NOTHING_SAID:
        return _ONE_CPU
    _check_gpus(resources.gpu, f"{field}.gpu")
    share = round(resources.gpu_share * WHOLE) if 0 < resources.gpu_share <= 1 else 0
    if not 1 <= share <= SHARED_CAP and share != WHOLE:
        need = f"up to {SHARED_CAP / WHOLE:g}, or 1 for whole devices"
        raise SpecError(
            "the share of a device is out of range",
            code="E103",
            field=f"{field}.gpu_share",
            need=need,
            have=str(resources.gpu_share),
        )
    models = [resources.gpu_model] if isinstance(resources.gpu_model, str) else resources.gpu_model
    if not resources.gpu:
        for name, asked in (
            ("gpu_share", share != WHOLE),
            ("gpu_model", models),
            ("gpu_kind", resources.gpu_kind != "gpu"),
        ):
            if asked:
                raise SpecError(f"`{name}` needs `gpu`", field=f"{field}.{name}", hint="gpu: 1")
    named = {
        "gpu_kind": [resources.gpu_kind],
        "gpu_model": models,
        "backend": [resources.backend],
        "ops": resources.ops,
    }
    for name, given in named.items():
        for text in given:
            check_text(text, f"{field}.{name}", most=64)
    if parse_or_raise(parse_bytes, resources.gpu_memory, f"{field}.gpu_memory", MAX_BYTES) and not resources.gpu:
        raise SpecError("`gpu_memory` needs `gpu`", field=f"{field}.gpu_memory", hint="gpu: 1")
    return Shape(
        cpu=parse_or_raise(parse_cpu, resources.cpu, f"{field}.cpu", MAX_CPU),
        memory=parse_or_raise(parse_bytes, resources.memory, f"{field}.memory", MAX_BYTES),
        gpus=resources.gpu,
        gpu_memory=parse_or_raise(parse_bytes, resources.gpu_memory, f"{field}.gpu_memory", MAX_BYTES),
        share=share,
        network=parse_or_raise(parse_rate, resources.network, f"{field}.network", MAX_BYTES),
        wants=_or(
            ANY_GPU,
            Wants(
                kind=resources.gpu_kind,
                models=_models(models),
                backend=resources.backend,
                precision=resources.precision,
                ops=tuple(resources.ops),
            ),
        ),
    )


_NOTHING_SAID, _ONE_CPU = ResourcesSpec(), Shape()
"""Who says nothing of what is needed gets one CPU: what the other fields' defaults come to."""


def _or(default: T, value: T) -> T:
    """The default itself where the value equals it: only what is the very same object is left out of a record."""
    return default if value == default else value


def _models(names: list[str]) -> tuple[str, ...]:
    """The catalogue's models that are meant: `A100` is either of its forms. What it does not know stays as written."""
    found = [model for name in names for model in [entry.name for entry in models_named(name)] or [name]]
    return tuple(dict.fromkeys(found))


def _check_gpus(value: int, field: str) -> None:
    if not 0 <= value <= 1024:
        raise SpecError("the number is out of range", code="E103", field=field, need="0 to 1024", have=str(value))


def parse_or_raise(parse: Any, value: Quantity, field: str, limit: int) -> int:
    """Parse a quantity, bounded; errors name the field."""
    try:
        parsed = int(parse(value))
    except ValueError as error:
        have = shown(value)
        raise SpecError("the quantity cannot be read", code="E103", field=field, need=str(error), have=have) from None
    if parsed > limit:
        have = shown(value)
        need = f"at most {_WRITTEN.get(parse, str)(limit)}"
        raise SpecError("the quantity is absurd", code="E103", field=field, have=have, need=need)
    return parsed


_WRITTEN: dict[Any, Callable[[int], str]] = {
    parse_bytes: format_bytes,
    parse_cpu: format_cpu,
    parse_duration: format_duration,
    parse_rate: format_rate,
}


def shown(value: Quantity) -> str:
    """An integer of thousands of digits cannot even be written out."""
    return "a number of many digits" if isinstance(value, int) and abs(value) >= 2**63 else str(value)[:80]


def compile_quota(spec: QuotaSpec) -> Quota:
    """Raises SpecError for what is no amount."""
    return Quota(
        cpu=PLENTY if spec.cpu is None else parse_or_raise(parse_cpu, spec.cpu, "cpu", MAX_CPU),
        memory=PLENTY if spec.memory is None else parse_or_raise(parse_bytes, spec.memory, "memory", MAX_BYTES),
        gpus=PLENTY if spec.gpu is None else parse_or_raise(parse_cpu, spec.gpu, "gpu", MAX_CPU),  # in thousandths too
    )


def _duration(value: Quantity, field: str) -> int:
    return parse_or_raise(parse_duration, value, field, MAX_DURATION)


def _deadline(value: Quantity | None, field: str, wall: float) -> int:
    """Nanoseconds from submission, from `30m` or `2026-12-01T12:00:00+01:00`; 0 for none."""
    if value is None:
        return 0
    if isinstance(value, str) and re.match(r"\d{4}-\d\d-\d\d", value):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            raise SpecError(
                "the moment cannot be read", code="E103", field=field, have=value, need="2026-12-01T12:00:00Z"
            ) from None
        if moment.tzinfo is None:
            raise SpecError("the moment has no time zone", code="E103", field=field, have=value, hint=f"{value}Z")
        left = int((moment - datetime.fromtimestamp(wall, UTC)).total_seconds() * SECOND)
        if left > MAX_DURATION:
            raise SpecError("the deadline is absurd", code="E103", field=field, have=value, need="within ten years")
    else:
        left = _duration(value, field)
    if left <= 0:
        raise SpecError(
            "the deadline has passed already", code="E108", field=field, have=shown(value), need="a time to come"
        )
    return left
