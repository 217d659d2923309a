"""Compile what users write into a `Job`.

Files and requests have the same shape: `kind: job` is one command (perhaps a gang, or cut by data), `kind: graph` is a
mapping of named tasks. `compile_spec` takes the parsed document and returns integers, resolved references and expanded
tasks, or raises `SpecError` with every error: the path of the field, the expected value and a hint.

A task with `workers: 2` becomes a gang `name` of tasks `name[0]`, `name[1]`; one with `parts: 4` becomes four units
`name[0]` … `name[3]` and, with `merge`, one more unit `name.merge`, which the tasks that need `name` then wait for. A
`sweep` is cut into one part for each combination of its values.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeVar

import msgspec

from poise.errors import SpecError
from poise.model import graph
from poise.model.arrays import MAX_PARTS, each, first_unit, part_of, shared_out, units_in
from poise.model.catalogue import models_named
from poise.model.deadlines import IfLate
from poise.model.document import Findings, field_parts, near, shown
from poise.model.fields import (
    MAX_BYTES,
    MAX_CPU,
    MAX_DURATION,
    MAX_FLOPS,
    NAME,
    Declared,
    Quantity,
    declared,
    duration,
    memory,
    parse_or_raise,
)
from poise.model.job_fields import (
    LEAST_IDLE,
    MAX_TASKS,
    PHASES,
    CheckpointSpec,
    Command,
    DeadlineSpec,
    IdleSpec,
    JobSpec,
    PriorityName,
    ResourcesSpec,
    SentSpec,
    SplitSpec,
    TaskSpec,
    WorkersSpec,
    WorkSpec,
    example_of,
)
from poise.model.jobs import (
    ANY_FAILURE,
    EXCLUSIVE_GRACE,
    GRACE,
    INTERRUPTED,
    LOSSES,
    NEVER,
    NO_WORK,
    Array,
    IfIdle,
    InPhase,
    Job,
    Outcome,
    Priority,
    Retry,
    Task,
    Unit,
    Variant,
    Work,
)
from poise.model.notices import Notify, compile_notify
from poise.model.quotas import Quota, QuotaHours
from poise.model.recurring import DEFAULT_ZONE, Rule, check_cron
from poise.model.resources import (
    ANY_GPU,
    ANYWHERE,
    CONTAINERS,
    PLENTY,
    WHOLE,
    Shape,
    Wants,
    Where,
    contained,
    image_mark,
)
from poise.model.secrets import compiled as compiled_secrets
from poise.model.secrets import size_of
from poise.model.sweep import NO_COMBINATIONS, Combinations, check_placeholders, combinations, in_env
from poise.model.tenants import DEFAULT, class_of_tenant
from poise.model.trees import Tree, is_safe
from poise.units import (
    SECOND,
    format_cpu,
    format_duration,
    parse_bytes,
    parse_cpu,
    parse_flops,
    parse_rate,
    parse_share,
)

MAX_COMMAND_BYTES = 128 * 1024
MAX_JOB_BYTES = 16 * 2**20
"""Limit for the commands, environments and secrets of all tasks together; parts multiply the content of a small
file.
"""

MAX_NEEDS = 100_000
"""Limit for the needs of all units together; parts that need parts multiply."""

OOM_RETRIES = 2
"""Retries after out of memory: the same work with the same memory runs out of it again."""

MAX_CYCLES = 10
"""Maximum number of cycles to report for one graph."""

MAX_SERVES = 1024
"""Limit of `serves` in bytes: every record of what made room for the replica contains it."""

LEAST_EVERY = 1 * SECOND

NEVER_RECURRING = ("after", "after-any", "after-failure", "begin", "calls", "flexible", "serves", "stdin", "tty")
"""Fields that are meaningful only for a single job."""

MAX_TEXT = 4096
_JOB_ID = re.compile(r"j[0-9]+")
_SCHEDULE_ID = re.compile(r"s[0-9]+")
_NAME = re.compile(NAME)


MAX_HOURS = 32
_WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_SPAN = re.compile(r"([0-9]{1,2}):([0-9]{2})-([0-9]{1,2}):([0-9]{2})")


class QuotaSpec(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Quota of a tenant; fields that are not set are unlimited. `hours` have other amounts, in the time zone
    `time_zone`: `20:00-06:00 mon-fri gpu=8`.
    """

    cpu: Quantity | None = None
    memory: Quantity | None = None
    gpu: Quantity | None = None
    hours: tuple[str, ...] = ()
    time_zone: str = DEFAULT_ZONE


AUTO_PHASES = (
    InPhase(phase="convergence", cpu=8000, memory=600),
    InPhase(phase="fine-tuning", cpu=4000, memory=300),
    InPhase(phase="initial", cpu=16000, memory=900),
)
"""The meaning of `phases: auto`."""

LEAST_PART = 10


class Compiled(NamedTuple):
    """A job without an id, the names of the jobs it comes after as the user wrote them, and a note for the user.
    `due_by` maps units to the field that declared their deadline. With `recurs` it is a schedule. It may begin up to
    `flexible` nanoseconds later, when electricity is cleaner or cheaper.
    """

    name: str
    folder: str
    env: dict[str, str]
    units: tuple[Unit, ...]
    after: tuple[str, ...] = ()
    note: str = ""
    due_by: Mapping[str, str] = {}
    calls: bool = False
    tenant: str = DEFAULT
    after_any: tuple[str, ...] = ()
    after_failure: tuple[str, ...] = ()
    hold: bool = False
    retry_of: str = ""
    secrets: Mapping[str, str] = {}
    recurs: Rule | None = None
    notify: Notify | None = None
    tree: Tree | None = None
    project: str = ""
    flexible: int = 0
    allow_failed: int = 0
    array: Array | None = None

    @property
    def size(self) -> int:
        """Number of units that the job will have."""
        return len(self.units) if self.array is None else units_in(self.array)

    @property
    def all_after(self) -> tuple[tuple[str, ...], ...]:
        """The names in `after`, `after-any` and `after-failure`."""
        return self.after, self.after_any, self.after_failure

    @property
    def strict(self) -> tuple[Unit, ...]:
        """Units that are refused unless their deadline is likely to be met."""
        return tuple(unit for unit in self.units if unit.deadline and unit.if_late == "refuse")

    def job(self, job_id: str, ids: Mapping[str, str], user: str = "") -> Job:
        """Return the job. `ids` maps the names of the jobs it comes after, as the user wrote them, to job ids."""
        return Job(
            id=job_id,
            units=self.units,
            name=self.name,
            folder=self.folder,
            env=self.env,
            after=tuple(dict.fromkeys(ids[name] for names in self.all_after for name in names)),
            user=user,
            note=self.note,
            calls=self.calls,
            tenant=self.tenant,
            after_any=tuple(dict.fromkeys(ids[name] for name in self.after_any)),
            after_failure=tuple(dict.fromkeys(ids[name] for name in self.after_failure)),
            hold=self.hold,
            retry_of=self.retry_of,
            secrets=dict(self.secrets),
            notify=self.notify,
            project=self.project,
            tree=self.tree,
            allow_failed=self.allow_failed,
            array=self.array,
        )


class Cut(NamedTuple):
    """Inputs for the size of parts: the fleet's `load` in [0, 1], its `spread` (speed of its fastest node relative to
    its slowest, minus 1), and the factor by which parts must be `finer` to meet a deadline.
    """

    load: float = 0.0
    spread: float = 0.0
    finer: int = 1


def part_size(split: SplitSpec, cut: Cut) -> int:
    """Return the items per part: `max(1, floor(10 (1 - load)))`, so that a busy fleet gets smaller parts, over `1 +
    min(spread, 3)`, so that the last part on a slow node does not hold up an uneven fleet, over `finer`; within the
    limits of `split`.
    """
    size = max(1, int(10 * (1 - cut.load))) / (1 + min(max(0.0, cut.spread), 3.0)) / cut.finer
    least = max(split.min, -(-split.items // MAX_TASKS))
    return max(least, min(split.max, int(size)), 1)


def idle_and_even(devices: bool) -> Cut:
    """Return the default inputs, for an unknown fleet."""
    return Cut()


def compile_spec(
    document: Any, *, wall: float, cut: Callable[[bool], Cut] = idle_and_even, tenant: str = DEFAULT
) -> Compiled:
    """Compile a parsed file or request of a tenant. `wall` (seconds since 1970) is the reference for absolute
    deadlines. `cut` returns the inputs for a `split` of size `auto`, for work on devices (True) or on CPUs only.
    """
    found = Findings()
    top = found.convert(document, JobSpec)
    made = None if top is None else _compile(top, wall, cut, tenant, found)
    found.check(_example)
    if made is None:
        raise AssertionError("a document that is not compiled has something wrong in it")
    return made


def _compile(top: JobSpec, wall: float, cut: Callable[[bool], Cut], tenant: str, found: Findings) -> Compiled:
    if top.name:
        found.get(None, check_name, top.name, "name")
        if _JOB_ID.fullmatch(top.name):
            found.add(SpecError("this name looks like the id of a job", code="E107", field="name", have=top.name))
    if top.project:
        found.get(None, check_name, top.project, "project")
    found.get(None, check_text, top.folder, "folder")
    for field, others in (("after", top.after), ("after-any", top.after_any), ("after-failure", top.after_failure)):
        for index, other in enumerate(others):
            found.get(None, check_text, other, f"{field}[{index}]")
    env = _environment(top.env, "env", found)
    deadline = _due(top.deadline, "deadline", wall, found)
    begin = found.get(0, _time_to, top.begin, "begin", wall, "begin")
    inherited = _Defaults(top.priority or "medium", deadline, wall, top.name, cut, tenant, env)
    due_by: dict[str, str] = {}
    array: Array | None = None
    if top.kind == "graph" or (top.tasks and found.doubts("kind")):
        units = _graph_units(top, inherited, due_by, found)
    else:
        units, array = _job_units(top, env, inherited, found)
    if begin:
        units = [msgspec.structs.replace(unit, begin=begin) for unit in units]
        array = None if array is None else each(array, begin=begin)
        for unit in units:
            if 0 < unit.deadline <= begin:
                field, have = due_by.get(unit.name, "deadline"), format_duration(unit.deadline)
                need = f"later than its `begin`, in {format_duration(begin)}"
                found.add(SpecError("`begin` is later than the deadline", field=field, need=need, have=have))
                break
    due_by |= {unit.name: "deadline" for unit in units if unit.deadline and unit.name not in due_by}
    return Compiled(
        top.name,
        top.folder,
        env,
        tuple(units),
        tuple(top.after),
        due_by=due_by,
        calls=_serves(top, found),
        tenant=tenant,
        after_any=tuple(top.after_any),
        after_failure=tuple(top.after_failure),
        hold=top.hold,
        secrets=_job_secrets(top, found) if top.secrets else {},
        recurs=_recurs(top, found),
        notify=compile_notify(top.notify, top.notify_on, "notify", found),
        tree=_tree(top, found),
        project=top.project,
        flexible=0 if top.flexible is None else found.get(0, duration, top.flexible, "flexible"),
        allow_failed=_allow_failed(top, units[0].tasks[0].parts if units and not top.tasks else 0, found),
        array=array,
    )


def _allow_failed(top: JobSpec, parts: int, found: Findings) -> int:
    """Return how many of the parts may fail, from `5%` or a number."""
    asked = top.allow_failed
    if not asked:
        return 0
    if not parts:
        what, need = "`allow-failed` is for the parts of a job", "`parts`, `split` or `sweep`"
        error = SpecError(what, field="allow-failed", need=need, hint="parts: 100")
        found.add(error, "parts", "split", "sweep")
        return 0
    if isinstance(asked, str):
        return parts * found.get(0, parse_or_raise, parse_share, asked, "allow-failed", 1000) // 1000
    if not 0 <= asked <= parts:
        need, have = f"0 to {parts}, or a share such as 5%", shown(asked)
        found.add(SpecError("the number is out of range", code="E103", field="allow-failed", need=need, have=have))
    return asked


def _tree(top: JobSpec, found: Findings) -> Tree | None:
    """Return the files of the job; None if it brings none. They have no hash until a client has sent them."""
    if top.requirements and not is_safe(top.requirements):
        need, hint = "a path in the working tree", "requirements: requirements.txt"
        found.add(SpecError("the lock file is not in the tree", field="requirements", need=need, hint=hint))
    if top.sync == "":
        what, need = "the folder has no name", "true, false or a folder"
        found.add(SpecError(what, field="sync", need=need, have="an empty text", hint="sync: true"))
    if isinstance(top.sync, SentSpec):
        if not re.fullmatch("[0-9a-f]{64}", top.sync.tree):
            what, need = "this is not the hash of a tree", "64 hexadecimal digits"
            found.add(SpecError(what, field="sync.tree", need=need, have=ascii(top.sync.tree[:100]), hint="sync: true"))
        if top.sync.folder and not is_safe(top.sync.folder):
            found.add(
                SpecError("the folder is not in the tree", field="sync.folder", have=ascii(top.sync.folder[:200]))
            )
        return Tree(
            hash=top.sync.tree,
            folder=top.sync.folder,
            everywhere=top.sync.everywhere,
            requirements=top.requirements,
        )
    if top.requirements and top.sync is False:
        what, hint = "the environment is built from a lock file that is sent with the job", "sync: true"
        found.add(SpecError(what, field="requirements", hint=hint))
    return Tree(hash="", requirements=top.requirements) if top.sync or top.requirements else None


def _recurs(top: JobSpec, found: Findings) -> Rule | None:
    """Return when a schedule submits the job; None for a single job."""
    if top.every is None and not top.cron:
        for field, given in (("time-zone", top.time_zone), ("overlap", top.overlap)):
            if given:
                what, hint = f"`{field}` is for schedules, and this job has no `every` or `cron`", "cron: '0 3 * * *'"
                found.add(SpecError(what, code="E105", field=field, have=given, hint=hint))
        return None
    if top.every is not None and (top.cron or top.time_zone):
        field = "cron" if top.cron else "time-zone"
        what = "a schedule has `every` or `cron`, not both"
        what = f"{what}; `time-zone` is for `cron`" if field == "time-zone" else what
        found.add(SpecError(what, code="E105", field=field, hint="every: 1h"))
    if _SCHEDULE_ID.fullmatch(top.name):
        found.add(SpecError("this name looks like the id of a schedule", code="E107", field="name", have=top.name))
    for of in declared(JobSpec).values():
        if of.name in NEVER_RECURRING and _is_set(top, of):
            found.add(SpecError(f"a schedule cannot have `{of.name}`", code="E105", field=of.name))
    deadlines = {"deadline": top.deadline} | {f"tasks.{name}.deadline": of.deadline for name, of in top.tasks.items()}
    for field, deadline in deadlines.items():
        by = deadline.by if isinstance(deadline, DeadlineSpec) else deadline
        if _is_moment(by):
            what, need = "a moment is the deadline of one job", "a time from submission"
            found.add(SpecError(what, code="E105", field=field, need=need, have=str(by), hint="deadline: 2h"))
    every = 0 if top.every is None else found.get(LEAST_EVERY, duration, top.every, "every")
    if top.every is not None and every < LEAST_EVERY:
        need = f"at least {format_duration(LEAST_EVERY)}"
        found.add(SpecError("it would recur too often", code="E103", field="every", need=need, have=shown(top.every)))
    if top.cron:
        found.get(None, check_cron, top.cron, "cron")
    return Rule(
        every=every, cron=" ".join(top.cron.split()), zone=top.time_zone or DEFAULT_ZONE, overlap=top.overlap or "skip"
    )


def _job_secrets(top: JobSpec, found: Findings) -> dict[str, str]:
    taken = set(top.env).union(*(task.env for task in top.tasks.values()))
    return compiled_secrets(top.secrets, taken, "secrets", found)


def _is_set(spec: TaskSpec, of: Declared) -> bool:
    return bool(getattr(spec, of.attribute) != of.default)


def _serves(top: JobSpec, found: Findings) -> bool:
    """Check workers that serve calls: they are parts of one command, placed independently, and they share the calls."""
    if not top.calls:
        return False
    if isinstance(top.deadline, DeadlineSpec) and top.deadline.if_late != "run":
        what, hint = "what serves calls ends when its caller does, and has no end that could be late", "if-late: run"
        error = SpecError(what, code="E105", field="deadline.if-late", have=top.deadline.if_late, hint=hint)
        found.add(error)
    wrong = (of.name for of in declared(JobSpec).values() if not of.field.calls and _is_set(top, of))
    for field in wrong:
        what = "what serves calls is one command, in as many `parts` as may run at once"
        hint = "calls: true, parts: 4"
        found.add(SpecError(what, code="E105", field=field, have="calls: true", hint=hint), "calls")
    return True


def _example(field: str) -> str:
    """Return an example value for a field: that of the innermost known name in its path."""
    known = [example for part in field_parts(field) if (example := example_of(part))]
    return known[-1] if known else "run: echo hello"


class _Due(NamedTuple):
    """A deadline in nanoseconds after submission (0: none), and the action for work that cannot meet it."""

    deadline: int = 0
    if_late: IfLate = "run"

    def of(self, unit: Unit) -> Unit:
        """Return the unit with this deadline."""
        return msgspec.structs.replace(unit, deadline=self.deadline, if_late=self.if_late)


class _Defaults(NamedTuple):
    priority: PriorityName
    deadline: _Due
    wall: float
    job: str
    cut: Callable[[bool], Cut]
    tenant: str
    env: Collection[str]


class _Size(NamedTuple):
    """Number of tasks that a task of the file expands to: a gang of `least` to `most`, or `parts`; for a sweep, also
    the values of each part.
    """

    least: int
    most: int
    parts: int
    sweep: Combinations = NO_COMBINATIONS


def _job_units(
    top: JobSpec, env: Mapping[str, str], inherited: _Defaults, found: Findings
) -> tuple[list[Unit], Array | None]:
    """Return the units of a job that is not a graph. Of an array, return its rule and the first part."""
    if top.tasks:
        what = "a job has `run`, a graph has `tasks`"
        found.add(SpecError(what, field="kind", have="job", need="graph", hint="add `kind: graph`"))
        return [], None
    if top.needs:
        what = "`needs` belongs to the tasks of a graph"
        found.add(SpecError(what, field="needs", code="E105", hint="use `after: [JOB]`"))
    size = _size_of(top, "", inherited.cut, found)
    swept = in_env(env, size.sweep[0]) if size.sweep else {}  # the job's own environment is the same for all tasks
    own = msgspec.structs.replace(
        top, env={name: env[name] for name, value in swept.items() if value != env[name]}, deadline=None, secrets=[]
    )
    large = size.parts + (top.merge is not None) > MAX_TASKS
    bounded = size if not large else size._replace(parts=1)  # of an array, one part is sent at a time
    sizes = _bounded({"": own}, {"": bounded}, found, size_of(top.secrets))
    if large and sizes[""] == bounded:
        sizes = {"": size}
    made = _units("main", own, sizes[""], "", inherited, found)
    if isinstance(made, Array):
        due, if_late = inherited.deadline
        if if_late != "run":
            what, hint = "the parts of an array are not cancelled one by one", "if-late: run"
            found.add(SpecError(what, code="E105", field="deadline.if-late", have=if_late, hint=hint))
        array = each(made, deadline=due)
        return [first_unit(array)], array
    return [inherited.deadline.of(unit) for unit in made], None


def _graph_units(top: JobSpec, inherited: _Defaults, due_by: dict[str, str], found: Findings) -> list[Unit]:
    """Return the units of a graph, and add those with their own deadline to `due_by`."""
    if not top.tasks:
        what = "a graph has no tasks"
        found.add(SpecError(what, field="tasks", code="E104", hint="tasks: {hello: {run: echo hello}}"))
    for field, default in _OF_A_TASK.items():
        if getattr(top, field) != default:
            name = field.rstrip("_")
            found.add(SpecError(f"a graph has `tasks`, not `{name}`", field=name, hint=f"move `{name}` into the tasks"))
    specs = top.tasks
    if len(specs) > MAX_TASKS:  # too many to check each of them
        found.add(_too_many("tasks", MAX_TASKS, len(specs)))
        return []
    for name in specs:
        found.get(None, check_name, name, f"tasks.{name}")
    _check_needs(specs, found)
    wanted = {name: _size_of(spec, f"tasks.{name}.", inherited.cut, found) for name, spec in specs.items()}
    sizes = _bounded(specs, wanted, found, size_of(top.secrets))
    stands_for: dict[str, tuple[str, ...]] = {}
    units: list[Unit] = []
    for name, spec in specs.items():
        made = _units(name, spec, sizes[name], f"tasks.{name}", inherited, found)
        if isinstance(made, Array):
            raise AssertionError("the tasks of a graph are bounded")
        stands_for[name] = (f"{name}.merge",) if spec.merge is not None else tuple(unit.name for unit in made)
        due_by |= {unit.name: f"tasks.{name}.deadline" for unit in made if unit.deadline}
        units.extend(made)
    found.get(None, _check_unique, units)
    if found:
        return []
    resolved = _resolve(units, specs, stands_for)
    followed = {need for unit in resolved for need in unit.needs}
    return [
        inherited.deadline.of(unit)
        if inherited.deadline.deadline and not unit.deadline and unit.name not in followed
        else unit
        for unit in resolved
    ]


def _size_of(spec: TaskSpec, field: str, cut: Callable[[bool], Cut], found: Findings) -> _Size:
    """Return the number of tasks; one if the declaration is invalid."""
    smallest, largest = found.get((1, 1), _workers, spec.workers, f"{field}workers")
    if bool(spec.parts) + (spec.split is not None) + (spec.sweep is not None) > 1:
        what, last = "a task is cut in one way", "split" if spec.sweep is None else "sweep"
        need = "`parts`, `split` or `sweep`"
        found.add(SpecError(what, field=f"{field}{last}", need=need, hint=f"drop `{last}`, or the other"))
    parts = spec.parts
    sweep = NO_COMBINATIONS
    most = MAX_TASKS if field else MAX_PARTS
    if spec.sweep is not None:
        sweep = combinations(spec.sweep, f"{field}sweep", most, found)
        for value in dict.fromkeys(value for axis in sweep.axes for row in axis.rows for value in row):
            found.get(None, check_text, value, f"{field}sweep")
        parts = len(sweep)
        if sweep:
            words = spec.run if isinstance(spec.run, list) else []  # in a string, the shell has its own variables
            found.get(None, check_placeholders, words, sweep[0], f"{field}run")
            for name, text in spec.env.items():
                found.get(None, check_placeholders, [str(text)], sweep[0], f"{field}env.{name}")
    elif spec.split is not None:
        parts = _parts_of(spec.split, spec.resources.gpu > 0, field, cut, found)
        found.get(None, check_count, parts, 0, f"{field}split.size", most)
    elif parts:
        found.get(None, check_count, parts, 0, f"{field}parts", most)
    if spec.at_most:
        found.get(None, check_count, spec.at_most, 1, f"{field}at_most", most)
        if not parts:
            what = "`at_most` limits several tasks, and this is one"
            need = "`--parts`, `--sweep`, or `split` in a job file"
            error = SpecError(what, field=f"{field}at_most", need=need, hint="parts: 4")
            found.add(error, f"{field}parts", f"{field}split", f"{field}sweep")
    return _Size(smallest, largest, parts if 0 <= parts <= most else 1, sweep)


def _parts_of(split: SplitSpec, devices: bool, field: str, cut: Callable[[bool], Cut], found: Findings) -> int:
    """Return the number of parts of a task that is cut by its items."""
    numbers = {"items": split.items, "min": split.min, "max": split.max}
    if split.size != "auto":
        numbers["size"] = split.size
    for name, value in numbers.items():
        if not 1 <= value <= MAX_BYTES and (name != "size" or value < 1):
            need, have = "1 or more, or auto" if name == "size" else "1 or more", shown(value)
            at = f"{field}split.{name}"
            found.add(SpecError("the number is out of range", code="E103", field=at, need=need, have=have))
    if split.min > split.max:
        error = SpecError("`min` is larger than `max`", code="E103", field=f"{field}split.min", have=str(split.min))
        found.add(error, f"{field}split.max")
    if found.doubts(f"{field}split"):
        return 1
    size = part_size(split, cut(devices)) if split.size == "auto" else split.size
    return -(-split.items // size)


def _workers(workers: int | str | WorkersSpec, field: str) -> tuple[int, int]:
    """Return the minimum and maximum number of tasks of a gang, from `4`, `2..8` or `{min: 2, max: 8}`."""
    if isinstance(workers, WorkersSpec):
        least, most = workers.min, workers.max
    elif isinstance(workers, int):
        least = most = workers
    else:
        match = re.fullmatch(r"\s*([0-9]{1,6})(?:\s*\.\.\s*([0-9]{1,6}))?\s*", workers)
        if match is None:
            raise SpecError(
                "the number of workers cannot be read", code="E103", field=field, need="2 or 2..8", have=workers[:80]
            )
        least, most = int(match[1]), int(match[2] or match[1])
    check_count(least, 1, field)
    check_count(most, 1, field)
    if least > most:
        raise SpecError("`min` is larger than `max`", code="E103", field=field, have=f"{least}..{most}")
    return least, most


def _bounded(
    specs: Mapping[str, TaskSpec], sizes: Mapping[str, _Size], found: Findings, shared: int
) -> Mapping[str, _Size]:
    """Return the sizes, or sizes of one if the job would be too large: a line of YAML can ask for a million tasks. Each
    launch has `shared` bytes of the job's secrets.
    """
    tasks = size = needs = 0
    for name, spec in specs.items():
        made = max(sizes[name].most, sizes[name].parts)
        tasks += made + (spec.merge is not None)
        size += made * (_length(spec.run) + sum(len(key) + _length(str(value)) for key, value in spec.env.items()))
        size += made * (size_of(spec.secrets) + shared)
        size += sum(
            2 * len(value) + len(key)
            for one in (sizes[name].sweep if made > 1 else sizes[name].sweep[:1])
            for key, value in one.items()
        )
        needs += max(1, sizes[name].parts) * sum(
            1 if specs[of].merge else max(1, sizes[of].parts) for of in spec.needs if of in specs
        )
    totals = (
        ("tasks", tasks, MAX_TASKS),
        ("bytes of commands, environments and secrets", size, MAX_JOB_BYTES),
        ("needs between parts; a `merge` makes them few", needs, MAX_NEEDS),
    )
    if all(amount <= most for _, amount, most in totals):
        return sizes
    for what, amount, most in totals:
        if amount > most:
            found.add(_too_many(what, most, amount))
            break
    return {name: _Size(min(of.least, 1), min(of.most, 2), min(of.parts, 1), of.sweep) for name, of in sizes.items()}


def _too_many(what: str, most: int, have: int) -> SpecError:
    return SpecError(f"the job has too many {what}", code="E103", need=f"at most {most}", have=str(have))


def _check_unique(units: list[Unit]) -> None:
    """Check names: `a[0]` and `a.merge` are derived from `a` and may collide with a task of that name."""
    names = [task.name for unit in units for task in unit.tasks] + [unit.name for unit in units if len(unit.tasks) > 1]
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise SpecError(
            "a name is used twice", code="E107", field=f"tasks.{twice}", have=twice, hint="rename one of them"
        )


_OF_A_TASK = {of.attribute: of.default for of in declared(TaskSpec).values() if not of.field.inherited}
"""Fields of a task that are invalid next to `tasks`, and their defaults."""


def _resolve(units: list[Unit], specs: Mapping[str, TaskSpec], stands_for: Mapping[str, tuple[str, ...]]) -> list[Unit]:
    """Replace task names in needs by unit names. Parts share one tuple."""
    resolved = {
        name: tuple(dict.fromkeys(unit for need in spec.needs for unit in stands_for[need]))
        for name, spec in specs.items()
    }
    merges = {f"{name}.merge" for name, spec in specs.items() if spec.merge is not None}
    return [
        unit if unit.name in merges else msgspec.structs.replace(unit, needs=resolved[unit.name.partition("[")[0]])
        for unit in units
    ]


def _check_needs(specs: Mapping[str, TaskSpec], found: Findings) -> None:
    for name, spec in specs.items():
        for place, need in enumerate(spec.needs):
            if need not in specs:
                error = SpecError(
                    f"task `{name}` needs `{need}`, which is not in the graph",
                    code="E105",
                    field=f"tasks.{name}.needs[{place}]",
                    have=need,
                    hint=near(need, specs) or f"the graph has: {', '.join(list(specs)[:12])}",
                )
                found.add(error, f"tasks.{need}")
    needs = {name: [need for need in spec.needs if need in specs] for name, spec in specs.items()}
    for _ in range(MAX_CYCLES):
        try:
            graph.topological_order(needs)
            return
        except graph.CycleError as error:
            first, last = error.path[0], error.path[-2]
            place = specs[first].needs.index(last)
            found.add(
                SpecError(
                    f"the graph has a cycle: {error}",
                    code="E106",
                    field=f"tasks.{first}.needs[{place}]",
                    hint=f"remove one of these needs, for example `{last}` from `tasks.{first}.needs`",
                )
            )
            needs[first] = [need for need in needs[first] if need != last]


def _units(
    name: str, spec: TaskSpec, size: _Size, at: str, inherited: _Defaults, found: Findings
) -> list[Unit] | Array:
    """Return the units of one task of the file: one, a gang, or parts and their merge; the rule of the parts if there
    are more than `MAX_TASKS`.
    """
    field = f"{at}." if at else ""
    artifact, argv, shape, variants = _artifacts(spec, field, found)
    _, most, parts, _ = size
    if spec.class_:
        found.get(None, check_text, spec.class_, f"{field}class", most=128)
    if spec.serves:
        found.get(None, check_text, spec.serves, f"{field}serves", most=MAX_SERVES)
    if parts and most > 1:
        error = SpecError("a task is a gang or cut by data, not both", field=f"{field}parts", hint="drop `workers`")
        found.add(error, f"{field}workers")
    if shape.where.groups and (most == 1 or size.least < most):
        name = "spread" if shape.where.spread else "together"
        what = f"`{name}` is for a gang that keeps its size"
        need, hint = "workers: 2 or more", "workers: 2"
        have = _size_text(size) + (" of a sweep" if spec.sweep else "")
        if parts:  # parts are placed one by one
            label = shape.where.spread or shape.where.together
            gang_of = f"`--workers {parts} --{name} {label}`, and each task finds its number in POISE_RANK"
            hint = f"{gang_of}; or one job for each {label}: `--label {label}=VALUE`"
        error = SpecError(what, field=f"{field}resources.{name}", need=need, have=have, hint=hint)
        found.add(error, f"{field}workers")
    if parts and (spec.stdin or spec.tty):
        given = "tty" if spec.tty else "stdin"
        hint = f"drop `{given}`, or give the input in files"
        what = "input is given to one command, and not to the parts of a task"
        error = SpecError(what, field=f"{field}{given}", hint=hint)
        found.add(error, f"{field}parts", f"{field}split", f"{field}sweep")
    if size.least < most and (spec.stdin or spec.tty):
        given = "tty" if spec.tty else "stdin"
        error = SpecError(
            "an elastic gang takes no input: its ranks change", field=f"{field}{given}", hint="workers: 2"
        )
        found.add(error, f"{field}workers")
    if parts and variants:
        error = SpecError("a task has artifacts or is cut by data, not both", field=f"{field}artifacts")
        found.add(error, f"{field}parts", f"{field}split", f"{field}sweep")
    if spec.merge is not None and not parts:
        error = SpecError("`merge` needs `parts`", field=f"{field}merge", hint="parts: 4")
        found.add(error, f"{field}parts", f"{field}split", f"{field}sweep")
    if spec.image:
        shape, variants = (
            _in_container(shape, spec.image),
            tuple(msgspec.structs.replace(one, shape=_in_container(one.shape, spec.image)) for one in variants),
        )
        for of, why in _NOT_IN_CONTAINERS.items():
            if getattr(spec, of) != getattr(_NO_FIELDS, of):
                what = f"a task in a container has no `{of}`: {why}"
                found.add(SpecError(what, field=f"{field}{of}", hint=f"drop `{of}`"), f"{field}image")
    own = next(iter(spec.artifacts.values())).run if spec.artifacts else spec.run
    kind = spec.class_ or (
        f"{inherited.job}/{name}" if inherited.job and name != "main" else _class_of(argv, own) if argv else ""
    )
    env = _environment(spec.env, f"{field}env", found)
    idle, if_idle = _idle(spec.idle, f"{field}idle", found)
    if idle and (parts or most > 1):
        what, hint = "an idle limit is for a single task", "drop `idle`"
        error = SpecError(what, field=f"{field}idle", hint=hint)
        found.add(error, f"{field}workers", f"{field}parts", f"{field}split", f"{field}sweep")
    checkpoint, restore = _checkpoint(spec.checkpoint, f"{field}checkpoint", found)
    due = _due(spec.deadline, f"{field}deadline", inherited.wall, found)
    base = Unit(
        name=name,
        tasks=(Task(name=name, argv=argv, env=env),),
        shape=shape,
        needs=tuple(spec.needs),
        priority=Priority[(spec.priority or inherited.priority).upper()],
        deadline=due.deadline,
        retry=_retry(spec, f"{field}retry", found),
        kind=class_of_tenant(kind, inherited.tenant),
        grace=_grace(spec, field, found),
        lease=spec.lease,
        least=size.least if size.least < most else 0,
        artifact=artifact,
        variants=variants,
        work=_work(spec.work, f"{field}work", found),
        checkpoint=checkpoint,
        restore=restore,
        preemptible=spec.preemptible and not spec.tty,
        serves=spec.serves,
        phases=_phases(spec, f"{field}phases", shape, found),
        if_late=due.if_late,
        idle=idle,
        if_idle=if_idle,
        output=found.get("", _output, spec.output, f"{field}output", size.sweep, several=parts > 0 or most > 1),
        secrets=compiled_secrets(spec.secrets, {*inherited.env, *spec.env}, f"{field}secrets", found)
        if spec.secrets
        else {},
        **_read(spec, field, found),
    )
    if parts:
        merge = found.get((), command_of, spec.merge, f"{field}merge") if spec.merge is not None else None
        array = _array(base, spec, size, merge)
        return array if units_in(array) > MAX_TASKS else _parts(array)
    if most > 1:
        gang = tuple(Task(name=f"{name}[{rank}]", argv=argv, env=env, rank=rank, world=most) for rank in range(most))
        return [msgspec.structs.replace(base, tasks=gang)]
    return [base]


_NOT_IN_CONTAINERS = {
    "lease": "only its node could end it in time",
    "secrets": "whoever may read its Pod would see them",
    "stdin": "it has no keeper",
    "tty": "it has no keeper",
    "hang": "it has no keeper",
    "idle": "it has no keeper",
    "output": "it has no folder",
}
"""Fields of a task that a container cannot follow, and why."""

_NO_FIELDS = TaskSpec()


def _in_container(shape: Shape, image: str) -> Shape:
    """Return the shape for nodes that run containers, and pass the devices of the shape to them; best one that has the
    image.
    """
    wanted = CONTAINERS | ({contained(shape.wants.kind): "yes"} if shape.gpus else {})
    labels = dict(shape.where.labels) | {name: (value,) for name, value in wanted.items()}
    where = msgspec.structs.replace(shape.where, labels=tuple(sorted(labels.items())), image=image_mark(image))
    return msgspec.structs.replace(shape, where=where)


def with_image(unit: Unit, image: str) -> Unit:
    """Return a unit with another name for its image."""

    def of(shape: Shape) -> Shape:
        return msgspec.structs.replace(shape, where=msgspec.structs.replace(shape.where, image=image_mark(image)))

    variants = tuple(msgspec.structs.replace(one, shape=of(one.shape)) for one in unit.variants)
    return msgspec.structs.replace(unit, image=image, shape=of(unit.shape), variants=variants)


_READ = [(of, of.field.read) for of in declared(TaskSpec).values() if of.field.read is not None]


def _read(spec: TaskSpec, at: str, found: Findings) -> dict[str, Any]:
    """Return the compiled values of fields whose declarations have a `read`. Fields left at their default are
    omitted, so that the default of the ledger applies.
    """
    made = {}
    for of, read in _READ:
        value = getattr(spec, of.attribute)
        if value != of.default:
            default = getattr(_PLAIN, of.attribute)
            made[of.attribute] = _or(default, found.get(default, read, value, f"{at}{of.name}"))
    return made


_PLAIN = Unit(name="", tasks=())


def _size_text(size: _Size) -> str:
    if size.parts:
        return f"{size.parts} parts"
    return f"workers: {size.least}..{size.most}" if size.least < size.most else f"workers: {size.most}"


def _artifacts(spec: TaskSpec, field: str, found: Findings) -> tuple[str, tuple[str, ...], Shape, tuple[Variant, ...]]:
    """Return the name, command and shape of the unit's own artifact, and the other artifacts; their names are the
    backends they were built for.
    """
    if not spec.artifacts:
        told = not spec.run and found.doubts(f"{field}artifacts")
        argv = () if told else found.get((), command_of, spec.run, f"{field}run")
        return "", argv, _shape(spec.resources, f"{field}resources", found), ()
    if spec.run:
        found.add(SpecError("a task has `run` or `artifacts`, not both", field=f"{field}run", hint="drop `run`"))
    made: list[Variant] = []
    for name, artifact in spec.artifacts.items():
        at = f"{field}artifacts.{name}"
        found.get(None, check_name, name, at)
        resources = artifact.resources or spec.resources
        asked = f"{at}.resources" if artifact.resources else f"{field}resources"
        if name == "cpu" and resources.gpu:
            found.add(
                SpecError("the artifact for the CPU requests devices", field=f"{at}.resources.gpu", hint="gpu: 0")
            )
        if name != "cpu":
            resources = msgspec.structs.replace(resources, backend=resources.backend or name)
        argv = found.get((), command_of, artifact.run, f"{at}.run")
        made.append(Variant(name=name, argv=argv, shape=_shape(resources, asked, found)))
    return made[0].name, made[0].argv, made[0].shape, tuple(made[1:])


def _output(pattern: str, field: str, sweep: Combinations, *, several: bool) -> str:
    """Check an output pattern: its placeholders are known, and no two tasks write to one file."""
    check_text(pattern, field)
    if sweep:
        check_placeholders([pattern], sweep[0], field)
        several = several and not all(f"{{{name}}}" in pattern for name in sweep[0])
    signs = re.findall("%(.?)", pattern)
    if unknown := [sign for sign in signs if sign not in tuple("jtra%")]:
        need = "%j, %t, %r, %a or %%"
        raise SpecError(
            "the name has an unknown placeholder", field=field, need=need, have=f"%{unknown[0]}", hint="%j.log"
        )
    if several and pattern and not {"t", "r"} & {*signs}:
        hint = f"{field}: {pattern}.%r"
        raise SpecError("several tasks would write to the same file", field=field, need="%r in the name", hint=hint)
    return pattern


def _grace(spec: TaskSpec, field: str, found: Findings) -> int:
    """Return the grace period. Exclusive work is stopped shortly before its lease expires, so its grace is short."""
    exclusive = spec.lease == "exclusive"
    if spec.grace is None:
        return EXCLUSIVE_GRACE if exclusive else GRACE
    grace = _or(GRACE, found.get(0, duration, spec.grace, f"{field}grace"))
    if exclusive and grace > EXCLUSIVE_GRACE:
        error = SpecError(
            "exclusive work must have a short `grace`",
            field=f"{field}grace",
            need="at most 1s",
            have=str(spec.grace),
            hint="grace: 1s",
        )
        found.add(error, f"{field}lease")
    return grace


def _work(spec: WorkSpec | None, field: str, found: Findings) -> Work:
    if spec is None:
        return NO_WORK
    return Work(
        flops=found.get(0, parse_or_raise, parse_flops, spec.flops, f"{field}.flops", MAX_FLOPS),
        bytes=found.get(0, parse_or_raise, parse_bytes, spec.bytes, f"{field}.bytes", MAX_BYTES),
        input=found.get(0, parse_or_raise, parse_bytes, spec.input, f"{field}.input", MAX_BYTES),
        model=found.get(0, parse_or_raise, parse_bytes, spec.model, f"{field}.model", MAX_BYTES),
    )


def _retry(task: TaskSpec, field: str, found: Findings) -> Retry:
    spec = task.retry
    if spec is None:
        return NEVER if task.tty else INTERRUPTED
    backoff = found.get(0, duration, spec.backoff, f"{field}.backoff")
    named = spec.when if spec.when is not None else ("lost", *sorted(ANY_FAILURE))
    when: tuple[Outcome, ...] = tuple(dict.fromkeys(named))
    ooms = min(spec.limit, OOM_RETRIES) if "oom" in when else 0
    losses = max(LOSSES, spec.limit) if spec.when is None and spec.limit else 0
    return Retry(limit=spec.limit, backoff=backoff, when=when, ooms=ooms, losses=losses)


def _checkpoint(spec: Quantity | CheckpointSpec | None, field: str, found: Findings) -> tuple[int, int]:
    """Return (interval, cost of restoring) in nanoseconds."""
    if spec is None:
        return 0, 0
    if isinstance(spec, CheckpointSpec):
        every = found.get(0, duration, spec.every, f"{field}.every")
        return every, found.get(0, duration, spec.restore, f"{field}.restore")
    return found.get(0, duration, spec, field), 0


def _idle(spec: Quantity | IdleSpec, field: str, found: Findings) -> tuple[int, IfIdle]:
    """Return (limit in nanoseconds, action)."""
    value, at = (spec.after, f"{field}.after") if isinstance(spec, IdleSpec) else (spec, field)
    after = found.get(0, duration, value, at)
    if 0 < after < LEAST_IDLE:
        need = f"{format_duration(LEAST_IDLE)} or more, or 0"
        found.add(SpecError("the idle limit is too short", code="E103", field=at, need=need, have=str(value)))
    return after, spec.then if isinstance(spec, IdleSpec) and after else "suspend"


def _phases(spec: TaskSpec, field: str, shape: Shape, found: Findings) -> tuple[InPhase, ...]:
    """Compile phases. No phase requests more than the task itself, so a task that fits somewhere fits there in each
    phase.
    """
    if spec.phases == "auto":
        return AUTO_PHASES
    made = []
    for phase, asked in spec.phases.items():
        at = f"{field}.{phase}"
        if phase not in PHASES:
            need, hint = ", ".join(PHASES), near(phase, PHASES)
            found.add(
                SpecError("this phase of training does not exist", field=at, need=need, have=phase[:80], hint=hint)
            )
        cpu = found.get(0, parse_or_raise, parse_cpu, asked.cpu, f"{at}.cpu", MAX_CPU) if asked.cpu is not None else 0
        memory = found.get(1000, parse_or_raise, parse_share, asked.device_memory, f"{at}.device_memory", 1000)
        if cpu > shape.cpu:
            need, have = f"at most {format_cpu(shape.cpu)}, as `resources` have it", format_cpu(cpu)
            found.add(SpecError("a phase requests more than its task", field=f"{at}.cpu", need=need, have=have))
        if memory < LEAST_PART:
            have = str(asked.device_memory)
            found.add(
                SpecError("this part is too small for training", field=f"{at}.device_memory", need="1%", have=have)
            )
        made.append(InPhase(phase=phase, cpu=cpu, memory=memory))
    return tuple(sorted(made, key=_phase_name))


def _phase_name(one: InPhase) -> str:
    return one.phase


def _array(base: Unit, spec: TaskSpec, size: _Size, merge: tuple[str, ...] | None) -> Array:
    """Return the rule of the parts and their merge. The merge inherits no estimates from the parts; its run time is
    learned from its own runs.
    """
    items = spec.split.items if spec.split is not None else 0
    like = shared_out(base, items, size.parts) if items else base
    last = None
    if merge is not None:
        task = Task(name=f"{base.name}.merge", argv=merge, env=base.tasks[0].env, parts=size.parts)
        last = msgspec.structs.replace(
            base,
            name=task.name,
            tasks=(task,),
            kind=f"{base.kind}.merge",
            expect=0,
            work=NO_WORK,
            checkpoint=0,
            restore=0,
            hang=0,
            output="",
        )
    return Array(
        like=msgspec.structs.replace(like, at_most=spec.at_most),
        parts=size.parts,
        spans=((0, size.parts),),
        axes=size.sweep.axes,
        shell=isinstance(spec.run, str),
        items=items,
        merge=last,
    )


def _parts(array: Array) -> list[Unit]:
    """Return all parts and their merge."""
    units = [part_of(array, part) for part in range(array.parts)]
    if array.merge is not None:
        units.append(msgspec.structs.replace(array.merge, needs=tuple(unit.name for unit in units)))
    return units


T = TypeVar("T")


def check_name(name: str, field: str) -> None:
    if not _NAME.fullmatch(name):
        raise SpecError(
            "a name has at most 63 letters, digits, `.`, `_` and `-`, and starts with a letter or digit",
            code="E107",
            field=field,
            have=name[:80],
        )


def check_count(value: int, least: int, field: str, most: int = MAX_TASKS) -> None:
    if not least <= value <= most:
        need, have = f"{least} to {most}", shown(value)
        raise SpecError("the number is out of range", code="E103", field=field, need=need, have=have)


def command_of(command: Command, field: str) -> tuple[str, ...]:
    """Return a command as an argument vector. Raises SpecError."""
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
    """Return a class for a command that names none: the program and its first argument that is not a flag. Each script
    of an interpreter gets its own class, and a text after `-c` is classified by its first words.
    """
    if isinstance(command, str):
        return "sh " + " ".join(command.split()[:2])[:48]
    program = argv[0].rsplit("/", 1)[-1]
    given = next((word for word in argv[1:] if not word.startswith("-")), "")
    words = given.split()[:2] if " " in given else [given.rsplit("/", 1)[-1]]
    return " ".join((program, *words)).strip()[:64]


def _environment(env: Mapping[str, Any], field: str, found: Findings) -> dict[str, str]:
    return {name: found.get("", variable_of, name, value, f"{field}.{name}") for name, value in env.items()}


def variable_of(name: str, value: Any, at: str) -> str:
    """Return the value of an environment variable as text. Raises SpecError."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise SpecError("this is not a name of an environment variable", code="E107", field=at)
    if value is None:
        raise SpecError(
            "this variable is not set in the submitter's environment",
            field=at,
            hint=f'`export {name}=…`, or give it a value in the file; the text `null` is `{name}: "null"`',
        )
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        hint = f'{name}: "{str(value).lower()}"' if isinstance(value, bool) else "put it in quotes"
        raise SpecError("the value has the wrong type", field=at, need="text or number", hint=hint)
    text = str(value)
    check_text(text, at, most=MAX_COMMAND_BYTES)
    return text


def check_text(text: str, field: str, *, most: int = MAX_TEXT, code: str = "E102") -> None:
    """Check text for a process and the log: UTF-8, without zero bytes, at most `most` bytes."""
    if "\0" in text:
        raise SpecError("a zero byte cannot be passed to a process", code=code, field=field)
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise SpecError("the text is not Unicode", code=code, field=field) from None
    if size > most:
        raise SpecError("the text is too long", code="E103", field=field, need=f"at most {most} bytes", have=str(size))


def _length(text: str | list[str]) -> int:
    """Return the length in UTF-8 bytes; `check_text` reports text that cannot be encoded and names the field."""
    if isinstance(text, str):
        return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    return sum(_length(word) for word in text)


def _shape(resources: ResourcesSpec, field: str, found: Findings) -> Shape:
    if resources == _NOTHING_SAID:
        return _ONE_CPU
    found.get(None, _check_gpus, resources.gpu, f"{field}.gpu")
    share = round(resources.gpu_share * WHOLE) if 0 < resources.gpu_share <= 1 else 0
    if not 1 <= share <= WHOLE:
        need, have = "above 0 and up to 1, which is whole devices", str(resources.gpu_share)
        at = f"{field}.gpu_share"
        found.add(SpecError("the share of a device is out of range", code="E103", field=at, need=need, have=have))
    models = [resources.gpu_model] if isinstance(resources.gpu_model, str) else resources.gpu_model
    gpu_memory = found.get(0, memory, resources.gpu_memory, f"{field}.gpu_memory")
    if not resources.gpu:
        for name, asked in (
            ("gpu_share", share != WHOLE),
            ("gpu_model", models),
            ("gpu_kind", resources.gpu_kind != "gpu"),
            ("gpu_memory", gpu_memory),
        ):
            if asked:
                error = SpecError(f"`{name}` needs `gpu`", field=f"{field}.{name}", hint="gpu: 1")
                found.add(error, f"{field}.gpu")
    named = {
        "gpu_kind": [resources.gpu_kind],
        "gpu_model": models,
        "backend": [resources.backend],
        "ops": resources.ops,
    }
    for name, given in named.items():
        for text in given:
            found.get(None, check_text, text, f"{field}.{name}", most=64)
    return Shape(
        cpu=found.get(0, parse_or_raise, parse_cpu, resources.cpu, f"{field}.cpu", MAX_CPU),
        memory=found.get(0, memory, resources.memory, f"{field}.memory"),
        gpus=resources.gpu,
        gpu_memory=gpu_memory,
        share=share,
        network=found.get(0, parse_or_raise, parse_rate, resources.network, f"{field}.network", MAX_BYTES),
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
        where=_or(ANYWHERE, _where(resources, field, found)),
    )


def _where(resources: ResourcesSpec, field: str, found: Findings) -> Where:
    """Return the allowed nodes. Names are checked once the fleet is known (`kernel/fitting.py`)."""
    nodes, without = (
        (of,) if isinstance(of, str) else tuple(dict.fromkeys(of)) for of in (resources.node, resources.exclude_node)
    )
    for name, names in (("node", nodes), ("exclude_node", without)):
        for node in names:
            found.get(None, check_text, node, f"{field}.{name}", most=255)
    of_labels: tuple[dict[str, tuple[str, ...]], dict[str, tuple[str, ...]]] = {}, {}
    for label, given in resources.label.items():
        at = f"{field}.label.{label}"
        values = [found.get("", label_value, label, one, at) for one in (given if isinstance(given, list) else [given])]
        if not values:
            found.add(SpecError("the label has no value", field=at, need="one value or more", hint="label: {zone: eu}"))
        for unwanted, made in enumerate(of_labels):
            some = tuple(value.removeprefix("!") for value in values if value.startswith("!") == bool(unwanted))
            if some:
                made[label] = some
    labels, without_labels = (tuple(sorted(of.items())) for of in of_labels)
    for name in ("spread", "together"):
        if label := getattr(resources, name):
            found.get(None, check_name, label, f"{field}.{name}")
    if resources.spread and resources.spread == resources.together:
        error = SpecError("tasks cannot be spread over a label and together by it", field=f"{field}.together")
        found.add(error, f"{field}.spread")
    return Where(
        nodes=nodes,
        without=without,
        labels=labels,
        without_labels=without_labels,
        spread=resources.spread,
        together=resources.together,
    )


def label_value(name: str, value: Any, at: str) -> str:
    """Return the value of a label as text. Raises SpecError for an invalid value or name."""
    if not isinstance(value, str | int | float):
        raise SpecError("the value has the wrong type", field=at, need="text or number")
    check_name(name, at)
    text = str(value).lower() if isinstance(value, bool) else str(value)
    check_text(text, at)
    return text


_NOTHING_SAID, _ONE_CPU = ResourcesSpec(), Shape()
"""A task without `resources` gets one CPU, which equals the defaults of the other fields."""


def _or(default: T, value: T) -> T:
    """Return the default itself if the value equals it: only the identical object is omitted from a record."""
    return default if value == default else value


def _models(names: list[str]) -> tuple[str, ...]:
    """Return the matching models of the catalogue: `A100` is either of its forms. Unknown names stay as written."""
    found = [model for name in names for model in [entry.name for entry in models_named(name)] or [name]]
    return tuple(dict.fromkeys(found))


def _check_gpus(value: int, field: str) -> None:
    if not 0 <= value <= 1024:
        raise SpecError("the number is out of range", code="E103", field=field, need="0 to 1024", have=str(value))


def compile_quota(spec: QuotaSpec) -> Quota:
    """Compile a quota. Raises SpecError for an invalid amount, and for invalid hours."""
    if len(spec.hours) > MAX_HOURS:
        what, need = "the quota has too many hours", f"at most {MAX_HOURS}"
        raise SpecError(what, field="hours", need=need, have=str(len(spec.hours)))
    cpu, memory, gpus = (_amount(name, getattr(spec, name)) for name in ("cpu", "memory", "gpu"))
    return Quota(cpu, memory, gpus, tuple(_hours(text, spec.time_zone) for text in spec.hours))


def _amount(name: str, value: Quantity | None) -> int:
    """Return an amount of a quota: milli-CPU, bytes, or thousandths of devices."""
    if value is None:
        return PLENTY
    bytes_ = name == "memory"
    return parse_or_raise(parse_bytes if bytes_ else parse_cpu, value, name, MAX_BYTES if bytes_ else MAX_CPU)


def _hours(text: str, zone: str) -> QuotaHours:
    """Compile hours of a quota: `20:00-06:00 mon-fri gpu=8 cpu=32`. They end on the next day if they end no later than
    they begin.
    """
    span, *others = text.lower().split() or [""]
    amounts: dict[str, Quantity] = {}
    named: list[int] = []
    for other in others:
        name, equals, amount = other.partition("=")
        if equals and name in ("cpu", "memory", "gpu") and amount and name not in amounts:
            amounts[name] = amount
        elif equals or named or (found := _days(name)) is None:
            raise _wrong_hours(text)
        else:
            named = found
    days = named or list(range(7))
    times = _SPAN.fullmatch(span)
    if times is None or not amounts:
        raise _wrong_hours(text)
    first, first_minute, last, last_minute = map(int, times.groups())
    if max(first, last) > 24 or max(first_minute, last_minute) > 59 or first == 24 or (last == 24 and last_minute):
        raise _wrong_hours(text)
    overnight = (last, last_minute) <= (first, first_minute) or last == 24
    until = sorted((day + 1) % 7 for day in days) if overnight else days
    cpu, memory, gpus = (_amount(name, amounts.get(name)) for name in ("cpu", "memory", "gpu"))
    return QuotaHours(
        begins=f"{first_minute} {first} * * {_cron_days(days)}",
        ends=f"{last_minute} {last % 24} * * {_cron_days(until)}",
        zone=zone,
        told=text,
        cpu=cpu,
        memory=memory,
        gpus=gpus,
    )


def _days(text: str) -> list[int] | None:
    """Return the weekdays of `mon-fri` or `sat,sun`, from Monday; None if it is neither."""
    days: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if first not in _WEEKDAYS or (dash and last not in _WEEKDAYS):
            return None
        begin = _WEEKDAYS.index(first)
        length = (_WEEKDAYS.index(last) - begin) % 7 if dash else 0
        days += [(begin + day) % 7 for day in range(length + 1)]
    return sorted(set(days))


def _cron_days(days: Sequence[int]) -> str:
    """Return weekdays as cron numbers them, from Sunday."""
    return "*" if len(days) == 7 else ",".join(str((day + 1) % 7) for day in days)


def _wrong_hours(text: str) -> SpecError:
    need, hint = "a time of day, weekdays, and amounts", "--hours '20:00-06:00 mon-fri gpu=8'"
    return SpecError("the hours cannot be read", code="E103", field="hours", need=need, have=text[:80], hint=hint)


def read_moment(value: str, field: str) -> datetime:
    """Parse a time such as `2026-12-01T12:00:00+01:00`; errors name the field."""
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise SpecError(
            "the time cannot be read", code="E103", field=field, have=value[:80], need="2026-12-01T12:00:00Z"
        ) from None
    if moment.tzinfo is None:
        hint = f"{moment.isoformat()}Z"
        raise SpecError("the time has no time zone", code="E103", field=field, have=value, hint=hint)
    return moment


def _due(value: Quantity | DeadlineSpec | None, field: str, wall: float, found: Findings) -> _Due:
    """Compile a deadline: `30m` or `{by: 30m, if-late: cancel}`."""
    if isinstance(value, DeadlineSpec):
        deadline = found.get(0, _time_to, value.by, f"{field}.by", wall, "deadline")
        return _Due(deadline, value.if_late if deadline else "run")
    return _Due(found.get(0, _time_to, value, field, wall, "deadline"))


def _is_moment(value: Quantity | None) -> bool:
    """Whether the value is a point in time, not a duration."""
    return isinstance(value, str) and re.match(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", value) is not None


def _time_to(value: Quantity | None, field: str, wall: float, what: str) -> int:
    """Return nanoseconds from submission, from `30m` or `2026-12-01T12:00:00+01:00`; 0 for none. `what` names the value
    in errors.
    """
    if value is None:
        return 0
    if isinstance(value, str) and _is_moment(value):
        moment = read_moment(value, field)
        left = int((moment - datetime.fromtimestamp(wall, UTC)).total_seconds() * SECOND)
        if left > MAX_DURATION:
            raise SpecError(
                "the time is too far in the future", code="E103", field=field, have=value, need="within ten years"
            )
    else:
        left = duration(value, field)
    if left <= 0:
        code = "E108" if what == "deadline" else "E103"
        raise SpecError(
            f"the {what} has passed already", code=code, field=field, have=shown(value), need="a time to come"
        )
    return left
