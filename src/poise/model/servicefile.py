"""Compile a service file.

    kind: service
    name: digits
    model: app.py:Model
    replicas: 2
    objective: {latency_p99: 200ms}
    precision: int8
    resources: {cpu: 1, gpu: 1}

`compile_service` takes the parsed document and raises `SpecError` with every error. A replica is an ordinary job:
`resources`, `priority`, `env` and `secrets` are those of jobs.
"""

import re
from collections.abc import Collection, Iterable
from typing import Any, Literal

import msgspec

from poise.errors import SpecError
from poise.model.canary import Stage, TrialRules
from poise.model.document import Findings, shown
from poise.model.fields import Quantity, parse_or_raise
from poise.model.job_fields import PriorityName, ResourcesSpec
from poise.model.precision import PrecisionName
from poise.model.scaling import DAYS, MAX_EVENT, MAX_RATE, Announced, ScaleRules, announced_days, read_times
from poise.model.serving import MOST, Limits
from poise.model.spec import check_name, check_text, compile_spec, read_moment
from poise.units import DAY, HOUR, SECOND, parse_bytes, parse_duration, parse_share

MOST_REPLICAS = 64
MOST_WAITING = 1_000_000
MOST_WORKERS = 1024
"""Maximum number of processes of one replica."""
MOST_AT_ONCE = 1024
"""Maximum number of requests that one replica serves at once, each by itself."""
LONGEST = HOUR
MAX_BODY = 64 << 20
"""Upper limit for the size of a request in bytes, whatever a file declares."""
LARGEST = 1 << 40
"""Maximum size of a cache in bytes."""


class ObjectiveSpec(msgspec.Struct, forbid_unknown_fields=True):
    """Objective of the service: the latency that one answer in a hundred may exceed."""

    latency_p99: Quantity = 0


Followed = Literal["rate", "latency", "queue", "devices"]
"""Signals that a gateway measures; `devices`: the fraction of time that replicas are busy."""


class AnnouncedSpec(msgspec.Struct, forbid_unknown_fields=True, rename={"like": "as"}):
    """Expected load from a given time on, for some time: a number of requests per second, a factor on the load, or the
    load of another day of the week.
    """

    at: str = ""
    lasts: Quantity = "1h"
    rate: float = 0.0
    load: Quantity = ""
    like: str = ""
    name: str = ""


class ScalingSpec(msgspec.Struct, forbid_unknown_fields=True):
    """How the number of replicas follows the load, if `replicas` is a range."""

    policy: str = ""
    signals: list[Followed] = msgspec.field(default_factory=lambda: ["rate", "latency", "queue"])
    target: Quantity = "70%"
    rise: Quantity = 0
    fall: Quantity = "5m"
    idle: Quantity = "5m"
    window: Quantity = "10s"
    shared: bool = False
    announced: list[AnnouncedSpec] = msgspec.field(default_factory=list)
    calendar: str = ""


class CacheSpec(msgspec.Struct, forbid_unknown_fields=True):
    """Cache of answers: equal requests get the cached answer."""

    size: Quantity = "64MiB"
    ttl: Quantity = "5m"
    same: Literal["bytes", "json"] = "bytes"
    redis: str = ""
    password_from: str = ""


class RecordSpec(msgspec.Struct, forbid_unknown_fields=True):
    """Requests that are recorded in a file, for a replay."""

    file: str = ""
    share: Quantity = "100%"
    size: Quantity = "64MiB"


class CanarySpec(msgspec.Struct, forbid_unknown_fields=True):
    """A version on trial beside the current one: its differences, its requests, and its rules."""

    model: str = ""
    version: str | int = ""
    folder: str = ""
    python: str = ""
    precision: PrecisionName = ""
    replicas: int = 0
    env: dict[str, Any] = {}
    replay: str = ""
    shadow: Quantity = 0
    share: list[Quantity] = msgspec.field(default_factory=lambda: ["5%", "25%", "50%"])
    after: int = 200
    errors: Quantity = "1%"
    latency: float = 1.2
    agreement: Quantity = "95%"
    close: float = 1e-3
    promote: bool = True


class ServiceSpec(msgspec.Struct, forbid_unknown_fields=True):
    """A whole file."""

    kind: str = ""
    name: str = ""
    model: str = ""
    version: str | int = ""
    version_of: str = ""
    folder: str = ""
    python: str = ""
    process: str = ""
    replicas: int | str = 1
    scaling: ScalingSpec | None = None
    objective: ObjectiveSpec = msgspec.field(default_factory=ObjectiveSpec)
    batch: int = 64
    batch_wait: Quantity = 0
    concurrency: int = 16
    workers: int = 1
    queue: int = 10_000
    hold: Quantity | None = None
    body: Quantity = "16MiB"
    timeout: Quantity = "30s"
    late: Literal["refuse", "defer"] = "refuse"
    openai: Literal["", "embeddings"] = ""
    cache: CacheSpec | None = None
    record: RecordSpec | None = None
    canary: CanarySpec | None = None
    precision: PrecisionName = ""
    resources: ResourcesSpec = msgspec.field(default_factory=ResourcesSpec)
    priority: PriorityName = "high"
    env: dict[str, Any] = {}
    secrets: list[str] | dict[str, Any] = []


class LatestSpec(msgspec.Struct, forbid_unknown_fields=True):
    """Serve this number of the newest versions."""

    latest: int = 1


class ModelSpec(ServiceSpec, forbid_unknown_fields=True):
    """The `config.yaml` of a model's folder: a service, whose name and class have defaults."""

    version_policy: Literal["all"] | LatestSpec | list[int] = msgspec.field(default_factory=LatestSpec)


def served_versions(policy: Any, versions: Collection[int]) -> list[int]:
    """Return which of the versions in a model's folder are served, newest first. `policy`: the `version_policy` of its
    file. Raises `SpecError`.
    """
    newest = sorted(versions, reverse=True)
    match policy:
        case "all":
            return newest
        case {"latest": int(count), **others} if not others and not isinstance(count, bool) and count >= 1:
            return newest[:count]
        case [_, *_] if all(isinstance(one, int) and not isinstance(one, bool) for one in policy):
            if missing := [one for one in policy if one not in versions]:
                have = ", ".join(map(str, reversed(newest)))
                what = f"there is no version {missing[0]} in the folder"
                raise SpecError(what, code="E105", field="version_policy", have=have, hint=f"mkdir {missing[0]}")
            return sorted(set(policy), reverse=True)
    raise SpecError(
        "this policy cannot be read",
        field="version_policy",
        need="all, {latest: 2}, or a list such as [1, 3]",
        have=shown(policy),
        hint="version_policy: all",
    )


class DeclaredService(msgspec.Struct, frozen=True, kw_only=True):
    """A compiled file. `job` has the job fields of each replica, except its command. With `rules` the number of
    `replicas` follows the load, by the scaler named `scaler`, measured over a `window` in nanoseconds, and the
    `announced` load, in nanoseconds since 1970. `cache`: maximum bytes of cached answers, each kept for `ttl`
    nanoseconds; `canonical`: bodies with the same JSON value are equal; `redis`: the URL of a Redis that gateways
    share, with its password in the variable `password_from`. `record`: the file for recorded requests, the fraction to
    record, and its maximum size in bytes. `canary`: another version, on `trial`. `openai`: the OpenAI route that it
    also answers, if any. `precision`: the precision requested from the model. `concurrency`: number of requests that a
    replica serves at once, if its model takes them one by one. `version_of`: it is another version of this model.
    `process`: the name of the process that loads its model, with those of other services; empty for its own.
    """

    name: str
    model: str
    version: str = ""
    version_of: str = ""
    folder: str = ""
    python: str = ""
    process: str = ""
    replicas: int = 1
    rules: ScaleRules | None = None
    scaler: str = ""
    window: int = 0
    announced: tuple[Announced, ...] = ()
    limits: Limits = Limits()
    cache: int = 0
    ttl: int = 0
    canonical: bool = False
    redis: str = ""
    password_from: str = ""
    record: tuple[str, float, int] | None = None
    canary: "DeclaredService | None" = None
    trial: TrialRules | None = None
    openai: str = ""
    precision: str = ""
    concurrency: int = 16
    job: dict[str, Any] = {}

    @property
    def wanted(self) -> str:
        """Return the wanted number of replicas, for people."""
        return str(self.replicas) if self.rules is None else f"{self.rules.least}..{self.rules.most}"


def compile_service(document: Any) -> DeclaredService:
    """Compile a parsed file."""
    found = Findings()
    top = found.convert(document, ServiceSpec)
    made = None if top is None else _compile(top, document, found)
    found.check(_example)
    if made is None:
        raise AssertionError("a document that is not compiled has something wrong in it")
    return made


_EXAMPLES = {
    "kind": "kind: service",
    "name": "name: digits",
    "model": "model: app.py:Model",
    "version": "version: 2026-05",
    "version_of": "version_of: digits",
    "folder": "folder: models",
    "python": "python: .venv/bin/python",
    "process": "process: small-models",
    "replicas": "replicas: 2",
    "objective": "objective: {latency_p99: 200ms}",
    "scaling": "scaling: {target: 70%, fall: 5m}",
    "batch": "batch: 64",
    "batch_wait": "batch_wait: 5ms",
    "concurrency": "concurrency: 16",
    "workers": "workers: 2",
    "queue": "queue: 10000",
    "hold": "hold: 10s",
    "body": "body: 16MiB",
    "timeout": "timeout: 30s",
    "cache": "cache: {size: 64MiB, ttl: 5m}",
    "late": "late: defer",
    "record": "record: {file: asked.jsonl, share: 10%}",
    "canary": "canary: {model: newer.py:Model, shadow: 20%}",
    "openai": "openai: embeddings",
    "precision": "precision: int8",
    "resources": "resources: {cpu: 1, gpu: 1}",
    "priority": "priority: high",
    "env": "env: {OMP_NUM_THREADS: 1}",
    "secrets": "secrets: [HF_TOKEN]",
}


def _example(field: str) -> str:
    return _EXAMPLES.get(field.partition(".")[0].partition("[")[0], _EXAMPLES["kind"])


def _compile(top: ServiceSpec, document: Any, found: Findings) -> DeclaredService:
    if top.kind != "service":
        found.add(SpecError("this file is not a service", field="kind", need="service", have=top.kind))
    if not top.name:
        found.add(SpecError("the field `name` is missing", field="name", need="the name of the service"))
    found.get(None, check_name, top.name, "name")
    found.get(None, check_name, f"{top.name}{'-canary' * (top.canary is not None)}-replica", "name")  # job names
    if not top.model:
        found.add(SpecError("the field `model` is missing", field="model", need=_NEED_CLASS))
    elif not _CLASS.fullmatch(top.model):
        found.add(SpecError("`model` must name a class", field="model", need=_NEED_CLASS, have=top.model))
    for field in ("model", "folder", "python"):
        found.get(None, check_text, getattr(top, field), field)
    for field, value, most in (
        ("batch", top.batch, MOST),
        ("concurrency", top.concurrency, MOST_AT_ONCE),
        ("workers", top.workers, MOST_WORKERS),
        ("queue", top.queue, MOST_WAITING),
    ):
        if not 1 <= value <= most:
            found.add(SpecError("the number is out of range", field=field, need=f"1 to {most}", have=str(value)))
    limits = Limits(
        objective=found.get(
            0, parse_or_raise, parse_duration, top.objective.latency_p99, "objective.latency_p99", LONGEST
        ),
        timeout=found.get(0, parse_or_raise, parse_duration, top.timeout, "timeout", LONGEST),
        queue=top.queue,
        batch=top.batch,
        defer=top.late == "defer",
        body=found.get(0, parse_or_raise, parse_bytes, top.body, "body", MAX_BODY),
        wait=found.get(0, parse_or_raise, parse_duration, top.batch_wait, "batch_wait", LONGEST),
        hold=found.get(
            0, parse_or_raise, parse_duration, top.timeout if top.hold is None else top.hold, "hold", LONGEST
        ),
    )
    if not limits.body:
        found.add(
            SpecError("the maximum size of a request must be above 0", field="body", need="more than 0", have="0")
        )
    if not limits.timeout:
        found.add(
            SpecError("the time limit of a request must be above 0", field="timeout", need="more than 0", have="0")
        )
    least, most = found.get((1, 1), _replicas, top.replicas)
    rules, window, announced = None, 0, list[Announced]()
    if isinstance(top.replicas, str) and ".." in top.replicas:
        told = top.scaling or ScalingSpec()
        rules = _rules(told, least, most, limits.objective, found)
        window = found.get(SECOND, parse_or_raise, parse_duration, told.window, "scaling.window", LONGEST)
        if window < SECOND:
            what = "so little is seen in so short a time that nothing can be said of it"
            found.add(SpecError(what, field="scaling.window", need="1s or more", have=str(told.window)))
        for at, one in enumerate(told.announced):
            announced += _announced(one, f"scaling.announced[{at}]", found)
        if told.calendar:
            what, hint = "a calendar is read only with the file of its service", "`poise serve FILE.yaml` reads both"
            found.add(SpecError(what, field="scaling.calendar", have=told.calendar[:80], hint=hint))
    elif top.scaling is not None:
        what = "replicas do not follow the load where their number is given"
        found.add(
            SpecError(what, field="scaling", need="replicas: 1..8", have=str(top.replicas), hint="replicas: 1..8")
        )
    cache, ttl = 0, 0
    if top.cache is not None:
        cache = found.get(0, parse_or_raise, parse_bytes, top.cache.size, "cache.size", LARGEST)
        ttl = found.get(0, parse_or_raise, parse_duration, top.cache.ttl, "cache.ttl", DAY)
        found.get(None, _check_redis, top.cache)
    if top.version != "":
        found.get(None, check_name, str(top.version), "version")
    if top.version_of:
        found.get(None, check_name, top.version_of, "version_of")
        if top.version == "":
            what = "another version of a model needs a `version`"
            found.add(SpecError(what, field="version_of", need="version", hint="version: 2"))
    if top.process:
        found.get(None, check_name, f"{top.process}-replica", "process")
        _check_process(top, found)
    job = {field: document[field] for field in ("resources", "env", "secrets") if field in document}
    if top.workers > 1:
        job["workers"] = top.workers
    found.get(None, compile_spec, {"run": ["true"], **job}, wall=0.0)
    made = DeclaredService(
        name=top.name,
        model=top.model,
        version=str(top.version),
        version_of=top.version_of,
        folder=top.folder,
        python=top.python,
        process=top.process,
        replicas=most,
        rules=rules,
        scaler=top.scaling.policy if top.scaling is not None else "",
        window=window,
        announced=tuple(announced),
        limits=limits,
        cache=cache,
        ttl=ttl,
        canonical=top.cache is not None and top.cache.same == "json",
        redis=top.cache.redis if top.cache is not None else "",
        password_from=top.cache.password_from if top.cache is not None else "",
        record=None if top.record is None else _record(top.record, found),
        openai=top.openai,
        precision=top.precision or top.resources.precision,
        concurrency=top.concurrency,
        job=job | {"priority": top.priority},
    )
    return made if top.canary is None else _with_canary(made, top.canary, found)


def _check_process(top: ServiceSpec, found: Findings) -> None:
    """Add the fields that a model in a shared process cannot have."""
    if top.workers > 1:
        what = "a shared process has one worker"
        found.add(SpecError(what, field="workers", need="1", have=str(top.workers), hint="remove `process`"))
    if isinstance(top.replicas, str) and ".." in top.replicas:
        what = "the replicas of a shared process cannot follow the load of one model"
        found.add(SpecError(what, field="replicas", need="a number", have=top.replicas, hint="replicas: 2"))


def check_processes(services: Iterable[DeclaredService]) -> None:
    """Raise `SpecError` if services name the same process with different fields."""
    firsts: dict[str, DeclaredService] = {}
    for one in services:
        if not one.process or (first := firsts.setdefault(one.process, one)) is one:
            continue
        fields = [field for field in ("python", "replicas") if getattr(one, field) != getattr(first, field)]
        fields += [field for field in sorted({*one.job, *first.job}) if one.job.get(field) != first.job.get(field)]
        if fields:
            what = (
                f"`{first.name}` and `{one.name}` share the process `{one.process}`, but differ in {', '.join(fields)}"
            )
            raise SpecError(what, field=fields[0], need="the same values in both", hint="process: another")


REDIS = (
    r"(?:rediss?://(?:[^\s:@/]+@)?(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?(?:/[0-9]{1,5})?|unix:///\S+)"
)
VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"


def _check_redis(told: CacheSpec) -> None:
    if told.redis and not re.fullmatch(REDIS, told.redis):
        raise SpecError(
            "this is not a URL of a Redis",
            field="cache.redis",
            need="redis://HOST:PORT/NUMBER, rediss:// for TLS, or unix:///PATH; no password",
            have=re.sub(r":[^:@/]+@", ":...@", told.redis),
            hint="password_from: REDIS_PASSWORD" if "@" in told.redis else "redis: redis://127.0.0.1:6379/0",
        )
    if told.password_from and not re.fullmatch(VARIABLE, told.password_from):
        need = "the name of a variable of the environment, not the password"
        raise SpecError("this is not a name of a variable", field="cache.password_from", need=need)
    if told.password_from and not told.redis:
        raise SpecError(
            "a password needs a `redis`", field="cache.password_from", need="redis: redis://127.0.0.1:6379/0"
        )


def _record(told: RecordSpec, found: Findings) -> tuple[str, float, int]:
    if not told.file:
        found.add(SpecError("where to?", field="record.file", need="a file", hint="file: asked.jsonl"))
    found.get(None, check_text, told.file, "record.file")
    part = found.get(1000, parse_or_raise, parse_share, told.share, "record.share", 1000)
    return told.file, part / 1000, found.get(0, parse_or_raise, parse_bytes, told.size, "record.size", LARGEST)


def _with_canary(stable: DeclaredService, told: CanarySpec, found: Findings) -> DeclaredService:
    def part(field: str, value: Quantity) -> float:
        return found.get(0, parse_or_raise, parse_share, value, f"canary.{field}", 1000) / 1000

    def number(field: str, value: float, least: float, most: float) -> None:
        if not least <= value <= most:
            need = f"{least:g} to {most:g}"
            found.add(SpecError("the number is out of range", field=f"canary.{field}", need=need, have=shown(value)))

    for field in ("model", "folder", "python", "replay"):
        found.get(None, check_text, getattr(told, field), f"canary.{field}")
    if not (told.model or told.folder or told.python or told.precision or told.env):
        found.add(
            SpecError(
                "the canary does not differ from the service",
                field="canary",
                need="model, folder, python, precision or env",
            )
        )
    if told.model and not _CLASS.fullmatch(told.model):
        found.add(SpecError("`model` must name a class", field="canary.model", need=_NEED_CLASS, have=told.model))
    if told.version != "":
        found.get(None, check_name, str(told.version), "canary.version")
    number("replicas", told.replicas, 0, MOST_REPLICAS)
    number("after", told.after, 1, MOST_WAITING)
    number("latency", told.latency, 1, 1000)
    number("close", told.close, 0, 1)
    shadow = part("shadow", told.shadow)
    shares = [part(f"share[{at}]", value) for at, value in enumerate(told.share)]
    for at, share in enumerate(shares):
        if not share:
            found.add(
                SpecError("the share must be above 0", field=f"canary.share[{at}]", need="0.1% to 100%", have="0")
            )
    stages = [
        *([Stage("replay")] if told.replay else []),
        *([Stage("shadow", shadow)] if shadow else []),
        *(Stage("share", share) for share in shares),
    ]
    if not stages:
        found.add(SpecError("the canary gets no requests", field="canary.share", need="share, shadow or replay"))
    env = {"env": stable.job.get("env", {}) | told.env} if told.env else {}
    found.get(None, _check_env, told.env, stable.job.get("secrets", []))
    canary = msgspec.structs.replace(
        stable,
        name=f"{stable.name}-canary",
        model=told.model or stable.model,
        version=str(told.version),
        folder=told.folder or stable.folder,
        python=told.python or stable.python,
        precision=told.precision or stable.precision,
        replicas=told.replicas or stable.replicas,
        rules=None if told.replicas else stable.rules,
        record=None,
        job=stable.job | env,
    )
    trial = TrialRules(
        stages=tuple(stages),
        after=told.after,
        errors=part("errors", told.errors),
        latency=told.latency,
        agreement=part("agreement", told.agreement),
        close=told.close,
        promote=told.promote,
        replay=told.replay,
    )
    return msgspec.structs.replace(stable, canary=canary, trial=trial)


def _check_env(env: dict[str, Any], secrets: Any) -> None:
    """Check variables as those of a job, and report errors under the canary's field."""
    try:
        compile_spec({"run": ["true"], "env": env, "secrets": secrets}, wall=0.0)
    except SpecError as error:
        first, *others = [msgspec.structs.replace(one, field=f"canary.{one.field}") for one in error.record.all()]
        error.record = msgspec.structs.replace(first, others=tuple(others))
        raise


_CLASS = re.compile(r"[^:]+:.+", re.DOTALL)
_NEED_CLASS = "app.py:Model, or package.module:Model"
_RANGE = re.compile(r"\s*([0-9]{1,6})\s*(?:\.\.\s*([0-9]{1,6})\s*)?")


def _replicas(given: int | str) -> tuple[int, int]:
    """Return the minimum and the maximum."""
    match = _RANGE.fullmatch(str(given))
    least, most = (int(match[1]), int(match[2] or match[1])) if match else (-1, -1)
    if not (0 <= least <= most and 1 <= most <= MOST_REPLICAS) or (least == 0 and not (match and match[2])):
        need = f"1 to {MOST_REPLICAS}, or a range such as 1..8 or 0..4"
        raise SpecError("invalid number of replicas", code="E103", field="replicas", need=need, have=str(given))
    return least, most


def _announced(told: AnnouncedSpec, field: str, found: Findings) -> tuple[Announced, ...]:
    moment = found.get(None, read_moment, told.at, f"{field}.at")
    at = int(moment.timestamp()) * SECOND if moment is not None else 0
    lasts = found.get(0, parse_or_raise, parse_duration, told.lasts, f"{field}.lasts", MAX_EVENT)
    if told.load != "" and told.like:
        what, need = "announced load has one effect on the forecast", "`load` or `as`"
        found.add(SpecError(what, field=f"{field}.as", need=need, have="both"))
    if told.like and told.like.lower() not in DAYS:
        what = "there is no such day"
        found.add(SpecError(what, field=f"{field}.as", need=", ".join(DAYS), have=told.like[:80], hint="as: sunday"))
    times = found.get(1.0, read_times, told.load, f"{field}.load") if told.load != "" else 1.0
    if not 0 <= told.rate <= MAX_RATE or not (told.rate or told.load != "" or told.like):
        need = f"above 0, at most {MAX_RATE} a second"
        found.add(SpecError("the number is out of range", field=f"{field}.rate", need=need, have=shown(told.rate)))
    made = Announced(at, told.rate, at + lasts, times, 0, told.name[:63])
    if moment is None or told.like.lower() not in DAYS:
        return (made,)
    return announced_days(made, moment.weekday(), DAYS.index(told.like.lower()))


def _rules(told: ScalingSpec, least: int, most: int, objective: int, found: Findings) -> ScaleRules:
    def time(field: str) -> int:
        return found.get(0, parse_or_raise, parse_duration, getattr(told, field), f"scaling.{field}", LONGEST)

    if told.policy:
        found.get(None, check_name, told.policy, "scaling.policy")
    target = found.get(700, parse_or_raise, parse_share, told.target, "scaling.target", 1000)
    if not target:
        found.add(
            SpecError("the target must be above 0", field="scaling.target", need="1% to 100%", have=str(told.target))
        )
    if told.shared and not objective:
        what = "devices are shared by how near answers come to an objective"
        found.add(SpecError(what, field="scaling.shared", need="an objective", hint="objective: {latency_p99: 200ms}"))
    if not told.signals:
        found.add(SpecError("no signal is given", field="scaling.signals", need="rate, latency, queue or devices"))
    return ScaleRules(
        signals=tuple(told.signals),
        least=least,
        most=most,
        target=max(1, target) / 1000,
        latency_p99=objective,
        rise=time("rise"),
        fall=time("fall"),
        idle=time("idle"),
        shared=told.shared,
    )


__all__ = [
    "DeclaredService",
    "ModelSpec",
    "ObjectiveSpec",
    "ServiceSpec",
    "check_processes",
    "compile_service",
    "served_versions",
]
