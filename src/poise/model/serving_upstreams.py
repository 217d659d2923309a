"""Compile an upstreams file: model servers behind one front.

    kind: upstreams
    upstreams:
      - {name: big, url: "gpu1:8000", models: [llama-8b], key_from: BIG_KEY, weight: 4, limit: 256}
      - {name: small, url: "gpu2:8000", limit: 32, cache: 400000}   # its models are what its /v1/models says
    router: least-outstanding
    timeout: 10m
    objective: {latency_p99: 5s}
    health: {delay: 30s, every: 10s, timeout: 5s, failures: 3}
    discover:
      - {name: pool, dns: "vllm.models.svc:8000"}        # one upstream for each address of the name
      - {name: fleet, job: "vllm:8000"}                  # one for each running task of this job
      - {name: pods, kubernetes: "models/vllm:http"}     # one for each ready endpoint of this Service
    peers: {urls: ["gw1:8080", "gw2:8080"], key_from: PEERS_KEY}
    aliases:
      chat: {llama-8b: 90%, llama-9b: 10%}
    fallbacks:
      llama-9b: [llama-8b]

An upstream is any server that speaks OpenAI's API (vLLM, SGLang, llama.cpp, another front). Only `upstreams`, or
`discover`, is required. `compile_upstreams` takes the parsed document and raises `SpecError` with every error.
"""

import re
from typing import Any

import msgspec

from poise.errors import SpecError
from poise.model.document import Findings
from poise.model.fields import Quantity, parse_or_raise
from poise.model.servicefile import VARIABLE, ObjectiveSpec
from poise.model.spec import check_name
from poise.units import DAY, MILLISECOND, format_duration, parse_bytes, parse_duration, parse_share

MAX_UPSTREAMS = 1000
MAX_MODELS = 1000
"""Maximum number of models of one upstream."""

MAX_LIMIT = 100_000
"""Maximum number of concurrent requests at one upstream, and of waiting requests."""

MAX_CACHE = 10**10
"""Maximum number of tokens of earlier prompts that one upstream keeps."""

MAX_PORT = 65_535
MAX_PEERS = 64
MAX_TIER = 9
MAX_NAMES = 1000
"""Maximum number of aliases, and of models with fallbacks."""

MAX_FALLBACKS = 10
MAX_WEIGHT = 1e6
MAX_BODY = 2**30
MAX_BODIES = 2**40
MAX_SLOWER = 1e6
LONGEST = DAY
SHORTEST = MILLISECOND

HOST = r"[A-Za-z0-9_-]{1,63}(?:\.[A-Za-z0-9_-]{1,63})*\.?"
URL = rf"(?:https?://)?(?:{HOST}|\[[0-9A-Fa-f:.]+\])(?::[0-9]{{1,5}})?(?:/[A-Za-z0-9._~/-]*)?"
PATH = r"/[A-Za-z0-9._~/-]*"
DNS = rf"(?=[A-Za-z0-9].{{0,252}}:){HOST}:[0-9]{{1,5}}"
JOB = r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}:[0-9]{1,5}(?:\+part)?"
KUBERNETES = r"[a-z0-9][a-z0-9-]{0,62}/[a-z0-9][a-z0-9-]{0,62}(?::[a-z0-9-]{1,15})?"
SRV = rf"_[A-Za-z0-9-]{{1,62}}\._(?:tcp|udp)\.(?=[A-Za-z0-9].{{0,201}}$){HOST}"


SOURCES = {
    "dns": (DNS, "a name with a port", "host:port"),
    "srv": (SRV, "a name of SRV records", "_service._tcp.name"),
    "job": (JOB, "a job with a port", "name:port"),
    "kubernetes": (KUBERNETES, "a Service of Kubernetes", "namespace/service:port"),
}
"""Fields that say where upstreams are found: the pattern, the meaning and an example of each."""


class ConcurrencySpec(msgspec.Struct, forbid_unknown_fields=True):
    """Concurrency of an upstream that follows the latency of its answers."""

    target_p99: Quantity
    min: int = 1


class UpstreamSpec(msgspec.Struct, forbid_unknown_fields=True):
    """One server."""

    name: str
    url: str
    models: list[str] | None = None
    key_from: str = ""
    weight: float = 1.0
    limit: int = 64
    cache: int | None = None
    concurrency: ConcurrencySpec | None = None
    tier: int = 0


class DiscoverSpec(msgspec.Struct, forbid_unknown_fields=True):
    """Servers that a name in DNS, a job, or a Service of Kubernetes lists."""

    name: str
    dns: str = ""
    srv: str = ""
    job: str = ""
    kubernetes: str = ""
    every: Quantity = "30s"
    models: list[str] | None = None
    key_from: str = ""
    weight: float = 1.0
    limit: int = 64
    tier: int = 0


class RetriesSpec(msgspec.Struct, forbid_unknown_fields=True):
    """Limits of retries on other upstreams."""

    share: Quantity = "20%"
    most: int = 2


class EjectionSpec(msgspec.Struct, forbid_unknown_fields=True):
    """When an upstream gets no requests for a while."""

    failures: int = 5
    pause: Quantity = "30s"
    longest: Quantity = "5m"
    slower: float = 10.0
    least: Quantity = "1s"


class HealthSpec(msgspec.Struct, forbid_unknown_fields=True):
    """Health probe of an upstream."""

    path: str = "/v1/models"
    delay: Quantity = "30s"
    every: Quantity = "10s"
    timeout: Quantity = "5s"
    failures: int = 3


class PeersSpec(msgspec.Struct, forbid_unknown_fields=True):
    """Gateways on other machines before the same upstreams."""

    urls: list[str] = []
    key_from: str = ""


class UpstreamsSpec(msgspec.Struct, forbid_unknown_fields=True):
    """A whole file."""

    kind: str = ""
    upstreams: list[UpstreamSpec] = []
    discover: list[DiscoverSpec] = []
    peers: PeersSpec = msgspec.field(default_factory=PeersSpec)
    aliases: dict[str, str | dict[str, Quantity]] = {}
    fallbacks: dict[str, list[str]] = {}
    router: str = ""
    timeout: Quantity = "10m"
    objective: ObjectiveSpec = msgspec.field(default_factory=ObjectiveSpec)
    body: Quantity = "32MiB"
    bodies: Quantity = "1GiB"
    queue: int = 256
    hold: Quantity = "10s"
    stalled: Quantity = "30s"
    drain: Quantity = "30s"
    retries: RetriesSpec = msgspec.field(default_factory=RetriesSpec)
    ejection: EjectionSpec = msgspec.field(default_factory=EjectionSpec)
    health: HealthSpec = msgspec.field(default_factory=HealthSpec)


class Following(msgspec.Struct, frozen=True, kw_only=True):
    """Adaptive concurrency: as many requests at once as keep the P99 latency at `target` nanoseconds, at least
    `least`.
    """

    target: int
    least: int = 1


class Upstream(msgspec.Struct, frozen=True, kw_only=True):
    """One server. `url` ends without `/` and without `/v1`; without `models`, the server is asked for them. `limit`:
    its maximum number of concurrent requests, also with `concurrency`. `cache`: tokens of earlier prompts that it
    keeps; None if that is to be learned. `key_from`: the environment variable with its API key. `tier`: it gets
    requests only while all upstreams of lower tiers are full or down.
    """

    name: str
    url: str
    models: tuple[str, ...] = ()
    key_from: str = ""
    weight: float = 1.0
    limit: int = 64
    cache: int | None = None
    concurrency: Following | None = None
    tier: int = 0


class JobPlace(msgspec.Struct, frozen=True):
    """A job whose tasks serve at this port of their nodes; with `by_part`, part 3 of an array at the port plus 3."""

    job: str
    port: int
    by_part: bool


class ServicePlace(msgspec.Struct, frozen=True):
    """A Service of Kubernetes. `port`: name or number of the port of its endpoints; empty if there is only one."""

    namespace: str
    service: str
    port: str


class Discovery(msgspec.Struct, frozen=True, kw_only=True):
    """Upstreams found in DNS: one for each address of `dns` (`host:port`), or for each server of the `srv` records.
    They are looked up again after `every` nanoseconds. Or upstreams that the control plane (`job`) or an API server
    (`kubernetes`) reports at once. `like` has their settings.
    """

    dns: str
    srv: str
    job: JobPlace | None = None
    kubernetes: ServicePlace | None = None
    every: int
    like: Upstream

    @property
    def is_reported(self) -> bool:
        return self.job is not None or self.kubernetes is not None

    @property
    def name(self) -> str:
        return self.like.name


Shares = tuple[tuple[str, float], ...]
"""Models of an alias with their shares of its requests, which sum to 1."""


class Retries(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of retries: at most the fraction `share` of recent requests, and `most` for one request."""

    share: float
    most: int


class Ejection(msgspec.Struct, frozen=True, kw_only=True):
    """After `failures` failures in a row an upstream gets no requests for `pause` nanoseconds, doubled each time up to
    `longest`. A request also counts as failed if it takes at least `least` and `slower` times as long as at the others
    (0: never).
    """

    failures: int
    pause: int
    longest: int
    slower: float
    least: int


class Probing(msgspec.Struct, frozen=True, kw_only=True):
    """Health probe: a GET of `path` at the interval `every`, to be answered within `timeout`. After `failures` failures
    in a row the upstream is unhealthy, but not during its first `delay`. Nanoseconds.
    """

    path: str
    delay: int
    every: int
    timeout: int
    failures: int


class OtherGateways(msgspec.Struct, frozen=True, kw_only=True):
    """Addresses of gateways on other machines. `key_from`: the environment variable with the key that all share."""

    urls: tuple[str, ...] = ()
    key_from: str = ""


class Front(msgspec.Struct, frozen=True, kw_only=True):
    """A compiled file; durations in nanoseconds, `objective` is 0 if there is none.

    `body` and `bodies`: maximum bytes of one request, and of all requests in progress. `queue`: maximum number of
    requests that wait while all upstreams are at their limits, and of those that wait while none is up, each for at
    most `hold`. `stalled`: a client that reads nothing of its answer for
    this long is dropped. `router` is empty for the default. `aliases`: other names of models. `fallbacks`: models that
    answer, in this order, while no upstream of a model can.
    """

    upstreams: tuple[Upstream, ...]
    discover: tuple[Discovery, ...] = ()
    peers: OtherGateways = OtherGateways()
    aliases: dict[str, Shares] = {}
    fallbacks: dict[str, tuple[str, ...]] = {}
    router: str
    timeout: int
    objective: int
    body: int
    bodies: int
    queue: int
    hold: int
    stalled: int
    drain: int
    retries: Retries
    ejection: Ejection
    health: Probing


def compile_upstreams(document: Any) -> Front:
    """Compile a parsed file."""
    found = Findings()
    top = found.convert(document, UpstreamsSpec)
    made = None if top is None else _compile(top, found)
    found.check(_example)
    if made is None:
        raise AssertionError("a document that is not compiled has something wrong in it")
    return made


def no_upstreams() -> Front:
    """Return the front of a gateway that serves only its own models."""
    return _compile(UpstreamsSpec(kind="upstreams"), Findings())


_EXAMPLES = {
    "kind": "kind: upstreams",
    "upstreams": 'upstreams: [{name: a, url: "gpu1:8000"}]',
    "name": "name: gpu1",
    "url": 'url: "gpu1:8000"',
    "models": "models: [llama-8b]",
    "key_from": "key_from: GPU1_KEY",
    "weight": "weight: 2",
    "limit": "limit: 64",
    "cache": "cache: 400000",
    "concurrency": "concurrency: {target_p99: 500ms}",
    "target_p99": "concurrency: {target_p99: 500ms}",
    "min": "concurrency: {target_p99: 500ms, min: 2}",
    "tier": "tier: 1",
    "discover": 'discover: [{name: pool, dns: "vllm.models.svc:8000"}]',
    "peers": 'peers: {urls: ["gw1:8080", "gw2:8080"], key_from: PEERS_KEY}',
    "aliases": "aliases: {chat: {llama-8b: 90%, llama-9b: 10%}}",
    "fallbacks": "fallbacks: {llama-70b: [llama-8b]}",
    "router": "router: least-outstanding",
    "timeout": "timeout: 10m",
    "objective": "objective: {latency_p99: 5s}",
    "latency_p99": "objective: {latency_p99: 5s}",
    "body": "body: 32MiB",
    "bodies": "bodies: 1GiB",
    "queue": "queue: 256",
    "hold": "hold: 10s",
    "stalled": "stalled: 30s",
    "drain": "drain: 30s",
    "retries": "retries: {share: 20%, most: 2}",
    "ejection": "ejection: {failures: 5, pause: 30s, longest: 5m, slower: 10, least: 1s}",
    "health": "health: {path: /v1/models, delay: 30s, every: 10s, timeout: 5s, failures: 3}",
}


def _example(field: str) -> str:
    first, *rest = re.sub(r"\[.*?\]", "", field).split(".")
    return _EXAMPLES.get(rest[-1] if first == "upstreams" and rest else first, _EXAMPLES["upstreams"])


def _compile(top: UpstreamsSpec, found: Findings) -> Front:
    if top.kind != "upstreams":
        what = "this file is not about upstreams"
        found.add(SpecError(what, field="kind", need="upstreams", have=top.kind, hint="kind: upstreams"))
    if not (1 if not top.discover else 0) <= len(top.upstreams) <= MAX_UPSTREAMS:
        need, have = f"1 to {MAX_UPSTREAMS}", str(len(top.upstreams))
        found.add(SpecError("invalid number of upstreams", field="upstreams", need=need, have=have))
    if top.router:
        found.get(None, check_name, top.router, "router")

    def time(value: Quantity, field: str, least: int = SHORTEST) -> int:
        got = found.get(least, parse_or_raise, parse_duration, value, field, LONGEST)
        if got < least:
            need = f"{format_duration(least)} or more"
            found.add(SpecError("is too short", code="E103", field=field, need=need, have=str(value)))
        return got

    def number(value: int, least: int, most: int, field: str) -> int:
        if not least <= value <= most:
            need = f"{least} to {most}"
            found.add(SpecError("the number is out of range", code="E103", field=field, need=need, have=str(value)))
        return value

    def real(value: float, least: float, most: float, field: str) -> float:
        if not least <= value <= most:
            need, have = f"{least:g} to {most:g}", f"{value:g}"
            found.add(SpecError("the number is out of range", code="E103", field=field, need=need, have=have))
        return value

    ejection, health = top.ejection, top.health
    _check_path(health.path, found)
    upstreams = _upstreams(top.upstreams, number, real, time, found)
    return Front(
        upstreams=upstreams,
        discover=_discoveries(top.discover, {one.name for one in upstreams}, number, real, time, found),
        peers=_peers(top.peers, found),
        aliases=_aliases(top.aliases, found),
        fallbacks=_fallbacks(top.fallbacks, top.aliases, found),
        router=top.router,
        timeout=time(top.timeout, "timeout"),
        objective=time(top.objective.latency_p99, "objective.latency_p99", 0),
        body=found.get(0, parse_or_raise, parse_bytes, top.body, "body", MAX_BODY),
        bodies=found.get(0, parse_or_raise, parse_bytes, top.bodies, "bodies", MAX_BODIES),
        queue=number(top.queue, 0, MAX_LIMIT, "queue"),
        hold=time(top.hold, "hold", 0),
        stalled=time(top.stalled, "stalled"),
        drain=time(top.drain, "drain", 0),
        retries=Retries(
            share=found.get(0, parse_or_raise, parse_share, top.retries.share, "retries.share", 1000) / 1000,
            most=number(top.retries.most, 0, MAX_UPSTREAMS, "retries.most"),
        ),
        ejection=Ejection(
            failures=number(ejection.failures, 1, MAX_LIMIT, "ejection.failures"),
            pause=time(ejection.pause, "ejection.pause"),
            longest=time(ejection.longest, "ejection.longest"),
            slower=real(ejection.slower, 0, MAX_SLOWER, "ejection.slower"),
            least=time(ejection.least, "ejection.least", 0),
        ),
        health=Probing(
            path=health.path,
            delay=time(health.delay, "health.delay", 0),
            every=time(health.every, "health.every"),
            timeout=time(health.timeout, "health.timeout"),
            failures=number(health.failures, 1, MAX_LIMIT, "health.failures"),
        ),
    )


def _upstreams(specs: list[UpstreamSpec], number: Any, real: Any, time: Any, found: Findings) -> tuple[Upstream, ...]:
    made: dict[str, Upstream] = {}
    for place, spec in enumerate(specs[:MAX_UPSTREAMS]):
        at = f"upstreams[{place}]"
        found.get(None, check_name, spec.name, f"{at}.name")
        if spec.name in made:
            what = f"there is another upstream `{spec.name}`"
            found.add(SpecError(what, code="E107", field=f"{at}.name", have=spec.name))
        if not re.fullmatch(URL, spec.url):
            need = "host:port, or a URL without a user"
            found.add(SpecError("this is not a URL of a server", field=f"{at}.url", need=need, have=spec.url[:80]))
        told = _settings(spec, at, number, real, found)
        made[spec.name] = msgspec.structs.replace(
            told,
            url=_url(spec.url).removesuffix("/v1"),
            cache=None if spec.cache is None else number(spec.cache, 0, MAX_CACHE, f"{at}.cache"),
            concurrency=None
            if spec.concurrency is None
            else Following(
                target=time(spec.concurrency.target_p99, f"{at}.concurrency.target_p99"),
                least=number(spec.concurrency.min, 1, max(1, spec.limit), f"{at}.concurrency.min"),
            ),
        )
    return tuple(made.values())


def _settings(spec: UpstreamSpec | DiscoverSpec, at: str, number: Any, real: Any, found: Findings) -> Upstream:
    """Compile the settings that declared and discovered upstreams share; the URL is empty."""
    if spec.key_from and not re.fullmatch(VARIABLE, spec.key_from):
        need = "the name of a variable of the environment, not the key"
        found.add(SpecError("this is not a name of a variable", field=f"{at}.key_from", need=need))
    models = spec.models
    if models is not None and (not 1 <= len(models) <= MAX_MODELS or not all(models)):
        need = f"1 to {MAX_MODELS} names; without the field, those that it tells"
        found.add(SpecError("these are not names of models", field=f"{at}.models", need=need))
    return Upstream(
        name=spec.name,
        url="",
        models=tuple(dict.fromkeys(models or ())),
        key_from=spec.key_from,
        weight=real(spec.weight, 1 / MAX_WEIGHT, MAX_WEIGHT, f"{at}.weight"),
        limit=number(spec.limit, 1, MAX_LIMIT, f"{at}.limit"),
        tier=number(spec.tier, 0, MAX_TIER, f"{at}.tier"),
    )


def _discoveries(
    specs: list[DiscoverSpec], taken: set[str], number: Any, real: Any, time: Any, found: Findings
) -> tuple[Discovery, ...]:
    if len(specs) > MAX_UPSTREAMS:
        need, have = f"at most {MAX_UPSTREAMS}", str(len(specs))
        found.add(SpecError("too many names to look up", field="discover", need=need, have=have))
    made: dict[str, Discovery] = {}
    for place, spec in enumerate(specs[:MAX_UPSTREAMS]):
        at = f"discover[{place}]"
        found.get(None, check_name, spec.name, f"{at}.name")
        if spec.name in made or spec.name in taken:
            what = f"there is another upstream `{spec.name}`"
            found.add(SpecError(what, code="E107", field=f"{at}.name", have=spec.name))
        given = [field for field in SOURCES if getattr(spec, field)]
        if len(given) != 1:
            need = "one of " + ", ".join(f"`{field}: {example}`" for field, (_, _, example) in SOURCES.items())
            found.add(SpecError("needs one source", field=at, need=need, have=", ".join(given) or "none"))
        for field in given:
            pattern, what, example = SOURCES[field]
            if not re.fullmatch(pattern, getattr(spec, field)):
                have = getattr(spec, field)[:80]
                found.add(SpecError(f"this is not {what}", field=f"{at}.{field}", need=example, have=have))
        made[spec.name] = Discovery(
            dns=spec.dns,
            srv=spec.srv,
            job=_job_place(spec.job, f"{at}.job", number) if re.fullmatch(JOB, spec.job) else None,
            kubernetes=_service_place(spec.kubernetes) if spec.kubernetes else None,
            every=time(spec.every, f"{at}.every"),
            like=_settings(spec, at, number, real, found),
        )
    return tuple(made.values())


def _job_place(text: str, at: str, number: Any) -> JobPlace:
    job, _, port = text.rpartition(":")
    first, _, part = port.partition("+")
    return JobPlace(job, number(int(first), 1, MAX_PORT, at), bool(part))


def _service_place(text: str) -> ServicePlace:
    namespace, _, rest = text.partition("/")
    service, _, port = rest.partition(":")
    return ServicePlace(namespace, service, port)


def _peers(spec: PeersSpec, found: Findings) -> OtherGateways:
    if len(spec.urls) > MAX_PEERS:
        need, have = f"at most {MAX_PEERS}", str(len(spec.urls))
        found.add(SpecError("too many addresses of gateways", field="peers.urls", need=need, have=have))
    for place, url in enumerate(spec.urls[:MAX_PEERS]):
        if not re.fullmatch(URL, url):
            need = "host:port, or a URL without a user"
            found.add(SpecError("this is not a URL", field=f"peers.urls[{place}]", need=need, have=url[:80]))
    if (spec.urls or spec.key_from) and not re.fullmatch(VARIABLE, spec.key_from):
        need = "the name of a variable of the environment with the key that all gateways share"
        found.add(SpecError("gateways on other machines need a key", field="peers.key_from", need=need))
    return OtherGateways(urls=tuple(map(_url, spec.urls)), key_from=spec.key_from)


def _url(told: str) -> str:
    return ("" if "://" in told else "http://") + told.rstrip("/")


def _aliases(specs: dict[str, str | dict[str, Quantity]], found: Findings) -> dict[str, Shares]:
    _check_count(specs, "aliases", found)
    made: dict[str, Shares] = {}
    for name, told in specs.items():
        at = f"aliases.{name}"
        given: dict[str, Quantity] = {told: 1} if isinstance(told, str) else told
        shares = tuple(
            (model, found.get(0, parse_or_raise, parse_share, share, f"{at}.{model}", 1000) / 1000)
            for model, share in given.items()
        )
        if not name or not all(given) or len(given) > MAX_FALLBACKS:
            need = f"1 to {MAX_FALLBACKS} models"
            found.add(SpecError("an alias needs a name, and models with names", field=at, need=need))
        elif abs(sum(share for _, share in shares) - 1) > 1e-9:
            have = f"{sum(share for _, share in shares):.1%}"
            found.add(SpecError("the shares of an alias sum to 100 %", field=at, need="100%", have=have))
        for model in given:
            if model in specs and model != name:
                what = "an alias of an alias is not resolved"
                found.add(SpecError(what, field=f"{at}.{model}", need="the name of a model", have=model))
        made[name] = shares
    return made


def _fallbacks(
    specs: dict[str, list[str]], aliases: dict[str, str | dict[str, Quantity]], found: Findings
) -> dict[str, tuple[str, ...]]:
    _check_count(specs, "fallbacks", found)
    only_aliases = {name for name, told in aliases.items() if name not in ([told] if isinstance(told, str) else told)}
    for name, models in specs.items():
        for alias in (one for one in (name, *models) if one in only_aliases):
            what = "fallbacks are of models and to models, and this is an alias"
            found.add(SpecError(what, field=f"fallbacks.{name}", need="the name of a model", have=alias))
        if not name or not 1 <= len(models) <= MAX_FALLBACKS or not all(models) or name in models:
            need = f"1 to {MAX_FALLBACKS} other models"
            found.add(SpecError("these are not fallbacks of a model", field=f"fallbacks.{name}", need=need))
    return {name: tuple(dict.fromkeys(models)) for name, models in specs.items()}


def _check_count(specs: dict[str, Any], field: str, found: Findings) -> None:
    if len(specs) > MAX_NAMES:
        need, have = f"at most {MAX_NAMES}", str(len(specs))
        found.add(SpecError(f"too many {field}", field=field, need=need, have=have))


def _check_path(path: str, found: Findings) -> None:
    if not re.fullmatch(PATH, path):
        found.add(SpecError("this is not a path", field="health.path", need="such as /health", have=path[:80]))
