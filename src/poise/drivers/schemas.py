"""JSON Schema of every file that Poise reads, such as jobs, fleets, policies and devices.

Shapes come from the records that the files are decoded into. This module adds the meaning of each field and the texts
and numbers it takes. A schema is never stricter than Poise: everything that Poise accepts is valid. `poise schema`
prints the schemas, and docs/reference is generated from them.
"""

from collections.abc import Iterator
from typing import Any, get_args

import msgspec

from poise.engine import scenario
from poise.model import (
    budgets,
    calendar,
    control,
    devicefile,
    expressions,
    fleetfile,
    intensity,
    keys,
    notices,
    reservations,
    resources,
    rule_actions,
    rules,
    servicefile,
    serving_upstreams,
    sharefile,
    sign_in,
    worldfile,
)
from poise.model.catalogue import CATALOGUE
from poise.model.fields import (
    BYTES,
    CPU,
    DURATION,
    FLOPS,
    NAME,
    NAMES,
    RATE,
    SHARE,
    Declared,
    Schema,
    declared,
    quantity,
)
from poise.model.job_fields import COUNT, COUNT_OR_NONE, RECORDS, SECRETS, JobSpec, PriorityName, records_in
from poise.model.scaling import MAX_RATE, MAX_TIMES
from poise.model.serving import MOST
from poise.policy.rank import ORDERS, PRESETS, RANK_TERMS
from poise.policy.recipe import MAX_TERMS, MAX_WEIGHT, RECIPES, TURNS, YIELDS_BY, PolicySpec
from poise.policy.replicas import SCALERS
from poise.policy.score import TERMS

FILES = {
    "job": "A job or a graph: `poise submit FILE.yaml`",
    "fleet": "Nodes that are declared: `poise up --fleet FILE.yaml`",
    "policy": "Who runs where, and when: `poise up --policy FILE.yaml`",
    "devices": "What is known of the devices of this machine: `devices.yaml` in the home",
    "nemesis": "What breaks, and how often: `poise faults --nemesis FILE.yaml`",
    "world": "What a trace is tried in: `poise simulate --world FILE.yaml`, `poise rehearse --world FILE.yaml`",
    "service": "A model that answers requests: `poise serve FILE.yaml`",
    "model": "A model in a folder of its own: `config.yaml`, for `poise serve FOLDER`",
    "upstreams": "Model servers behind one front: `poise serve FILE.yaml`",
    "notifications": "Where notices of jobs may go: `notifications.yaml` in the home",
    "notice": "A notice about a job, as a webhook or a command gets it: `poise submit --notify TARGET`",
    "keys": "Who may ask a gateway, and how much: `poise serve --keys FILE.yaml`",
    "rules": "What follows from signals: `poise rules apply FILE.yaml`",
    "shares": "How tenants share the fleet: `poise shares apply FILE.yaml`",
    "reservations": "Nodes and devices that are kept for a time: `poise reserve apply FILE.yaml`",
    "budgets": "Limits of spending in each period: `poise budgets apply FILE.yaml`",
    "intensity": "When electricity is clean or cheap: `intensity.yaml` in the home",
    "calendar": "Announced events that change the load: `poise forecast --calendar FILE.yaml`",
    "sign-in": "Which accounts may sign in, and their tenants: `sign-in.yaml` in the home",
}
"""The kinds of files, with the purpose of each."""

_ROOTS: dict[str, type[msgspec.Struct]] = {
    "job": JobSpec,
    "fleet": fleetfile.FleetSpec,
    "policy": PolicySpec,
    "devices": devicefile.DevicesSpec,
    "nemesis": scenario.Nemesis,
    "world": worldfile.WorldSpec,
    "service": servicefile.ServiceSpec,
    "model": servicefile.ModelSpec,
    "upstreams": serving_upstreams.UpstreamsSpec,
    "notifications": notices.NotificationsSpec,
    "notice": notices.Notice,
    "keys": keys.KeysSpec,
    "rules": rules.RulesSpec,
    "shares": sharefile.SharesSpec,
    "reservations": reservations.ReservationsSpec,
    "budgets": budgets.BudgetsSpec,
    "intensity": intensity.IntensitySpec,
    "calendar": calendar.CalendarSpec,
    "sign-in": sign_in.SignInSpec,
}
_DIALECT = "https://json-schema.org/draft/2020-12/schema"

_POWER = quantity(r"[0-9]{1,9}(?:\.[0-9]{1,9})?\s*[mk]?W?", "700W")
_PRICE = quantity(r"\$?\s*[0-9]{1,9}(?:\.[0-9]{1,9})?\s*\$?(?:/h)?", "4.0")
_RATES = {
    "type": "object",
    "propertyNames": {"enum": list(fleetfile.PRECISIONS)},
    "additionalProperties": FLOPS,
}
_VALUE: Schema = {"type": "number", "minimum": 0, "maximum": intensity.MAX_VALUE}
_HOURS: Schema = {
    "type": "array",
    "items": _VALUE,
    "minItems": intensity.DAY_HOURS,
    "maxItems": intensity.WEEK_HOURS,
}
_TIMES: Schema = {
    "anyOf": [{"type": "string", "examples": ["x3", "30%"]}, {"type": "number", "minimum": 0, "maximum": MAX_TIMES}]
}
_DAY: Schema = {"type": "string", "examples": ["sunday"]}
_WEIGHT = {"type": "number", "minimum": -MAX_WEIGHT, "maximum": MAX_WEIGHT}


def _weights(terms: Any) -> Schema:
    return {
        "type": "object",
        "properties": dict.fromkeys(terms, _WEIGHT),
        "additionalProperties": _WEIGHT,
        "minProperties": 1,
        "maxProperties": MAX_TERMS,
    }


_TAKES: Schema = {
    "type": "array",
    "items": {
        "type": "array",
        "prefixItems": [{"type": "integer", "minimum": 1, "maximum": worldfile.MOST_ITEMS}, DURATION],
        "items": False,
        "minItems": 2,
    },
    "maxItems": worldfile.MOST_SIZES,
    "examples": [[[1, "30ms"], [8, "44ms"]]],
}


_CONDITION: Schema = {
    "anyOf": [
        {"type": "string", "minLength": 1, "maxLength": expressions.MAX_LENGTH},
        {
            "type": "object",
            "propertyNames": {"enum": list(expressions.SIGNALS)},
            "additionalProperties": {"type": "string"},
            "minProperties": 1,
        },
    ],
    "examples": ["avg_over(memory_usage, 10m) > 75%", {"memory_usage": ">75%"}],
}


def _one_of(required: list[str], **fields: Schema) -> Schema:
    return {"type": "object", "properties": fields, "required": required, "additionalProperties": False}


_OF_JOBS: dict[str, Schema] = {
    "class": {"description": "Class of the jobs.", "type": "string"},
    "name": {"description": "Name or id of the jobs, or a pattern.", "type": "string", "examples": ["train-*"]},
    "tenant": {"description": "Tenant of the jobs.", "type": "string"},
}
_PART: Schema = {"type": ["string", "number"], "examples": ["50%"]}
_SERVICE: Schema = {"type": "string", "pattern": f"^(?:{NAME}:)?{NAME}$", "examples": ["chat", "ann:chat"]}
_REPLICAS: Schema = _one_of(
    [],
    service=_SERVICE,
    by={"type": "integer", "minimum": 1, "maximum": rule_actions.MAX_REPLICAS, "default": 1},
)
_TARGET: Schema = notices.TARGETS["items"]
_ACTIONS: dict[str, Schema] = {
    "cordon": {"description": "Close the node to new work.", "const": True},
    "migrate_task": {"description": "Close the node, and move its work.", "const": True},
    "set_policy": {
        "description": "Set the policy: a name, or the fields of a policy file.",
        "anyOf": [{"type": "string", "minLength": 1}, {"type": "object", "minProperties": 1}],
    },
    "promote": {
        "description": "Promote a policy that is better in shadow: on trial for a part of the nodes, or for a share of "
        "the time, then for good.",
        **_one_of(
            ["policy"],
            policy={"anyOf": [{"type": "string", "minLength": 1}, {"type": "object", "minProperties": 1}]},
            nodes={
                "description": "A share of the nodes, their names (`n1,n2`), or labels (`zone=a`).",
                "anyOf": [{"type": "string", "minLength": 1}, {"type": "number"}],
            },
            share=SHARE,
            turn=DURATION,
            **{"for": DURATION},
        ),
    },
    "change_priority": {
        "description": "Set the priority class of unfinished jobs.",
        **_one_of(["to"], to={"enum": list(get_args(PriorityName))}, **_OF_JOBS),
    },
    "adjust_memory_limit": {
        "description": "Set or raise the memory limit of unfinished jobs, or fit it to the peaks of their class. "
        "Running jobs get a larger limit at once if their nodes have the room.",
        **_one_of([], to=BYTES, by=_PART, fit=_PART, least=BYTES, most=BYTES, **_OF_JOBS),
    },
    "scale_up_replicas": {"description": "Add replicas to a service, within its limits.", **_REPLICAS},
    "scale_down_replicas": {"description": "Remove replicas of a service, within its limits.", **_REPLICAS},
    "mirror_traffic": {
        "description": "Copy a share of the requests of a service to another one of the same gateway.",
        **_one_of(["service", "to"], service=_SERVICE, to={"type": "string", **NAMES}, share=SHARE),
    },
    "control": {
        "description": "Adjust a number in small steps, so that a signal of the fleet, or of the service whose "
        "replicas it sets, reaches its target.",
        **_one_of(
            ["knob", "target", "least", "most"],
            knob={
                "description": "The number: extra replicas, an amount of a quota, or a parameter of the policy.",
                "type": "string",
                "pattern": r"^(?:replicas|quota\.cpu|quota\.memory|quota\.gpu|policy\..+)$",
                "examples": ["quota.gpu", "replicas", "policy.fairness"],
            },
            of={"description": "The service, or the tenant of the quota.", "type": "string"},
            target={
                "description": "A signal and its target value.",
                "anyOf": [
                    {"type": "string", "minLength": 1, "maxLength": expressions.MAX_LENGTH},
                    {
                        "type": "object",
                        "propertyNames": {"enum": list(expressions.SIGNALS)},
                        "additionalProperties": {"type": ["string", "number"]},
                        "minProperties": 1,
                        "maxProperties": 1,
                    },
                ],
                "examples": [{"fleet_use": "80%"}, "avg_over(waiting, 10m) == 20"],
            },
            least={"description": "Smallest value of the number.", "type": ["string", "number"]},
            most={"description": "Largest value of the number.", "type": ["string", "number"]},
            every={"description": "Interval of steps.", **DURATION},
            effect={
                "description": "Whether a larger number raises the signal.",
                "enum": list(get_args(control.Effect)),
            },
            gains={
                "description": "Gains per step, relative to range and target; `poise rules tune` finds them.",
                "anyOf": [
                    {"const": "auto"},
                    _one_of(
                        [],
                        proportional={"type": "number", "minimum": 0, "maximum": control.MAX_GAIN},
                        integral={"type": "number", "minimum": 0, "maximum": control.MAX_GAIN},
                    ),
                ],
            },
        ),
    },
    "notify": {
        "description": "Open an incident, and notify the targets of the home, or these as well.",
        "anyOf": [
            {"const": True},
            _TARGET,
            {"type": "array", "items": _TARGET, "minItems": 1, "maxItems": notices.MOST_TARGETS},
        ],
    },
}


def _within(name: str) -> str:
    """Return the prefix of a record's fields in `MEANING`. Most fields of a found device share the meanings of
    `device`, and those of a model's file the meanings of `service`."""
    whole = name.removesuffix("Spec").lower()
    return "" if whole in ("job", "task") else f"{whole}."


def _of_jobs() -> Iterator[tuple[str, Declared]]:
    """Yield the fields of a job file, named as in `MEANING`."""
    for record in RECORDS:
        for name, of in declared(record).items():
            yield f"{_within(record.__name__)}{name}", of


def _forms_of_jobs() -> dict[str, Schema]:
    """Return the forms of these fields: their own form, a record in its place, or null."""
    forms = {}
    for key, of in _of_jobs():
        if of.field.form is not None:
            others: list[Schema] = [{"$ref": f"#/$defs/{record.__name__}"} for record in records_in(of.type)]
            others += [{"type": "null"}] if type(None) in get_args(of.type) else []
            own = of.field.form["anyOf"] if of.field.form.keys() == {"anyOf"} else [of.field.form]
            forms[key] = {"anyOf": [*own, *others]} if others else of.field.form
    return forms


_MAYBE_TIME: Schema = {"anyOf": [DURATION, {"type": "null"}]}
_MAYBE_SHARE: Schema = {"anyOf": [SHARE, {"type": "null"}]}

_LABELS: Schema = {
    "propertyNames": NAMES,
    "additionalProperties": {"type": ["string", "number", "boolean"]},
}

_MODELS: Schema = {
    "anyOf": [
        {
            "type": "array",
            "items": {"type": "string", "minLength": 1},
            "minItems": 1,
            "maxItems": serving_upstreams.MAX_MODELS,
        },
        {"type": "null"},
    ]
}

_OF_UPSTREAMS: dict[str, Schema] = {
    "name": NAMES,
    "models": _MODELS,
    "key_from": {"pattern": f"^(?:{servicefile.VARIABLE})?$", "examples": ["GPU1_KEY"]},
    "weight": {
        "type": "number",
        "minimum": 1 / serving_upstreams.MAX_WEIGHT,
        "maximum": serving_upstreams.MAX_WEIGHT,
    },
    "limit": {"minimum": 1, "maximum": serving_upstreams.MAX_LIMIT},
    "tier": {"minimum": 0, "maximum": serving_upstreams.MAX_TIER},
}
"""The values of fields that declared and discovered upstreams share."""

_FORMS: dict[str, Schema] = _forms_of_jobs() | {
    "policy.fairness": {"minimum": 0, "maximum": 1},
    "fleet.kind": {"const": "fleet"},
    "fleet.name": NAMES,
    "fleet.nodes": {"propertyNames": NAMES, "minProperties": 1},
    "fleet.throughputs": {
        "additionalProperties": {
            "type": "object",
            "additionalProperties": {"type": "number", "exclusiveMinimum": 0},
        }
    },
    "node.cpu": CPU,
    "node.memory": BYTES,
    "node.count": {"anyOf": [COUNT | {"maximum": fleetfile.MAX_NODES}, {"type": "null"}]},
    "node.network": RATE,
    "node.latency": DURATION,
    "node.labels": _LABELS,
    "devices.labels": _LABELS,
    "processor.compute_power": {"anyOf": [FLOPS, {"type": "null"}]},
    "processor.rates": _RATES,
    "processor.bandwidth": {"anyOf": [RATE, {"type": "null"}]},
    "device.model": {"examples": [entry.name for entry in CATALOGUE]},
    "device.count": COUNT | {"maximum": resources.MAX_DEVICES},
    "device.memory": {"anyOf": [BYTES, {"type": "null"}]},
    "device.compute_power": {"anyOf": [FLOPS, {"type": "null"}]},
    "device.rates": _RATES,
    "device.bandwidth": {"anyOf": [RATE, {"type": "null"}]},
    "device.power": {"anyOf": [_POWER, {"type": "null"}]},
    "device.price": {"anyOf": [_PRICE, {"type": "null"}]},
    "device.share_cap": {"anyOf": [SHARE, {"type": "null"}]},
    "device.socket": {"anyOf": [{"type": "integer", "minimum": 0, "maximum": resources.MAX_DEVICES}, {"type": "null"}]},
    "found.count": {"const": 1},
    "found.index": {
        "anyOf": [{"type": "integer", "minimum": 0, "maximum": resources.MAX_DEVICES - 1}, {"type": "null"}]
    },
    "devices.kind": {"const": "devices"},
    "fault.every": DURATION,
    "fault.lasts": DURATION,
    "world.kind": {"const": "world"},
    "world.name": NAMES,
    "world.sharing": SHARE,
    "restart.checkpoint": _MAYBE_TIME,
    "restart.save": _MAYBE_TIME,
    "restart.restore": _MAYBE_TIME,
    "scaling.loss": SHARE,
    "scaling.rack": SHARE,
    "scaling.zone": SHARE,
    "scaling.apart": SHARE,
    "stragglers.share": SHARE,
    "stragglers.factor": {"exclusiveMinimum": 1, "maximum": worldfile.MOST_FACTOR},
    "stragglers.lasts": DURATION,
    "losses.mtbf": DURATION,
    "losses.mttr": DURATION,
    "losses.detected": DURATION,
    "change.at": DURATION,
    "telemetry.every": DURATION,
    "telemetry.noise": SHARE,
    "telemetry.delay": DURATION,
    "power.idle": _MAYBE_SHARE,
    "power.busy": _MAYBE_SHARE,
    "power.kg_per_kwh": {"anyOf": [_VALUE, _HOURS, {"type": "null"}]},
    "power.flexible": DURATION,
    "intensity.kind": {"const": "intensity"},
    "intensity.hours": _HOURS,
    "intensity.dated": {"maxItems": intensity.MAX_DATED},
    "dated.from": {"minLength": 1, "examples": [intensity.EXAMPLE]},
    "dated.hours": {"type": "array", "items": _VALUE},
    "signin.kind": {"const": "sign-in"},
    "signin.issuer": {"minLength": 1, "maxLength": sign_in.MAX_TEXT, "examples": ["https://login.example.com"]},
    "signin.client": {"minLength": 1, "maxLength": sign_in.MAX_TEXT},
    "signin.rules": {"minItems": 1, "maxItems": sign_in.MAX_RULES},
    "signin.groups": {"minLength": 1, "maxLength": sign_in.MAX_TEXT},
    "signin.name": {"minLength": 1, "maxLength": sign_in.MAX_TEXT},
    "signin.lasts": DURATION,
    "signinrule.group": {"minLength": 1, "maxLength": sign_in.MAX_GROUP, "examples": ["team-*"]},
    "signinrule.tenant": {"minLength": 1},
    "serving.replicas": {"minItems": 1, "maxItems": worldfile.MOST_SERVERS},
    "serving.start": DURATION,
    "serving.spread": SHARE,
    "replica.name": NAMES,
    "replica.count": COUNT | {"maximum": worldfile.MOST_SERVERS},
    "replica.batch": _TAKES,
    "replica.prompt": _TAKES,
    "replica.token": _TAKES,
    "replica.slots": {"minimum": 0, "maximum": worldfile.MOST_ITEMS},
    "replica.cache": {"minimum": 0, "maximum": worldfile.MOST_CACHE},
    "replica.price": {"minimum": 0, "maximum": worldfile.MOST_PRICE},
    "hangup.share": SHARE,
    "hangup.after": DURATION,
    "service.kind": {"const": "service"},
    "service.name": NAMES,
    "service.model": {"pattern": "^[^:]+:.+$", "examples": ["app.py:Model"]},
    "service.replicas": {
        "anyOf": [
            COUNT | {"maximum": servicefile.MOST_REPLICAS},
            {"type": "string", "pattern": r"^\s*[0-9]{1,6}\s*(?:\.\.\s*[0-9]{1,6}\s*)?$", "examples": ["1..8"]},
        ]
    },
    "service.cache": {"anyOf": [{"$ref": "#/$defs/CacheSpec"}, {"type": "null"}]},
    "service.record": {"anyOf": [{"$ref": "#/$defs/RecordSpec"}, {"type": "null"}]},
    "record.file": {"minLength": 1},
    "record.share": SHARE,
    "record.size": BYTES,
    "service.canary": {"anyOf": [{"$ref": "#/$defs/CanarySpec"}, {"type": "null"}]},
    "canary.model": {"pattern": "^(?:[^:]+:.+)?$", "examples": ["newer.py:Model"]},
    "canary.version": {"anyOf": [{"type": "string", "pattern": f"^(?:{NAME})?$"}, {"type": "integer", "minimum": 0}]},
    "canary.replicas": {"minimum": 0, "maximum": servicefile.MOST_REPLICAS},
    "canary.shadow": SHARE,
    "canary.share": {"items": SHARE},
    "canary.after": COUNT | {"maximum": servicefile.MOST_WAITING},
    "canary.errors": SHARE,
    "canary.latency": {"minimum": 1, "maximum": 1000},
    "canary.agreement": SHARE,
    "canary.close": {"minimum": 0, "maximum": 1},
    "cache.size": BYTES,
    "cache.ttl": DURATION,
    "cache.redis": {"pattern": f"^(?:{servicefile.REDIS})?$", "examples": ["redis://127.0.0.1:6379/0"]},
    "cache.password_from": {"pattern": f"^(?:{servicefile.VARIABLE})?$"},
    "service.version": {"anyOf": [{"type": "string", "pattern": f"^(?:{NAME})?$"}, {"type": "integer", "minimum": 0}]},
    "scaling.target": SHARE,
    "scaling.policy": {"pattern": f"^(?:{NAME})?$", "examples": list(SCALERS)},
    "scaling.rise": DURATION,
    "scaling.fall": DURATION,
    "scaling.idle": DURATION,
    "scaling.window": DURATION,
    "announced.at": {"format": "date-time", "minLength": 1, "examples": ["2026-12-01T12:00:00Z"]},
    "announced.lasts": DURATION,
    "announced.rate": {"minimum": 0, "maximum": MAX_RATE},
    "announced.load": _TIMES,
    "announced.as": _DAY,
    "event.from": {"minLength": 1, "examples": ["2026-12-01T09:00", "2026-12-25"]},
    "event.for": DURATION,
    "event.load": _TIMES,
    "event.as": _DAY,
    "event.rate": {"minimum": 0, "maximum": MAX_RATE},
    "calendar.kind": {"const": "calendar"},
    "calendar.events": {"maxItems": calendar.MAX_EVENTS},
    "service.version_of": {"pattern": f"^(?:{NAME})?$"},
    "model.version_policy": {
        "anyOf": [
            {"const": "all"},
            {"$ref": "#/$defs/LatestSpec"},
            {"type": "array", "items": {"type": "integer", "minimum": 1}, "minItems": 1},
        ],
        "examples": ["all", {"latest": 2}, [1, 3]],
    },
    "latest.latest": {"minimum": 1},
    "service.secrets": SECRETS,
    "service.batch": COUNT | {"maximum": MOST},
    "service.batch_wait": DURATION,
    "service.concurrency": COUNT | {"maximum": servicefile.MOST_AT_ONCE},
    "service.workers": COUNT | {"maximum": servicefile.MOST_WORKERS},
    "service.queue": COUNT | {"maximum": servicefile.MOST_WAITING},
    "service.hold": DURATION,
    "service.body": BYTES,
    "service.timeout": DURATION,
    "notifications.kind": {"const": "notifications"},
    "notifications.commands": {
        "propertyNames": NAMES,
        "additionalProperties": {"type": "array", "items": {"type": "string"}, "minItems": 1},
        "maxProperties": notices.MOST_COMMANDS,
    },
    "notifications.notify": notices.TARGETS,
    "notifications.incidents": notices.TARGETS,
    "reservations.kind": {"const": "reservations"},
    "reservations.reservations": {"maxItems": reservations.MAX_RESERVATIONS},
    "reservation.name": NAMES,
    "reservation.for": DURATION,
    "reservation.release_after": DURATION,
    "reservation.devices": {"minimum": 0, "maximum": reservations.MAX_COUNT},
    "budgets.kind": {"const": "budgets"},
    "budgets.budgets": {"maxItems": budgets.MAX_BUDGETS},
    "budget.name": NAMES,
    "budget.tenant": {"pattern": f"^(?:{NAME})?$"},
    "budget.project": {"pattern": f"^(?:{NAME})?$"},
    "budget.user": {"maxLength": 63},
    "budget.amount": {"type": "string", "pattern": rf"^\s*(?:{budgets.AMOUNT})\s*$", "examples": ["$5000", "200h"]},
    "budget.alerts": {"items": {"type": "integer", "minimum": 1, "maximum": 1000}, "maxItems": budgets.MAX_ALERTS},
    "shares.kind": {"const": "shares"},
    "shares.shares": {"maxItems": sharefile.MAX_SHARES},
    "shares.half_life": DURATION,
    "shares.prices": {"additionalProperties": _PRICE},
    "share.name": NAMES,
    "share.group": NAMES,
    "share.tenant": NAMES,
    "share.project": NAMES,
    "share.in": NAMES,
    "share.weight": {"minimum": 0, "maximum": sharefile.MAX_WEIGHT},
    "share.guaranteed": {"additionalProperties": CPU},
    "share.limit": {"additionalProperties": CPU},
    "rules.kind": {"const": "rules"},
    "rules.rules": {"maxItems": rules.MAX_RULES},
    "rules.every": DURATION,
    "rules.budget": {"minimum": 0, "maximum": 10_000},
    "rule.name": NAMES,
    "rule.trigger": _CONDITION,
    "rule.clear": _CONDITION,
    "rule.sustained_for": DURATION,
    "rule.cool_down": DURATION,
    "rule.scope": {"minItems": 1, "maxItems": rules.MAX_NAMED},
    "rule.actions": {
        "minItems": 1,
        "maxItems": rules.MAX_ACTIONS,
        "items": {"type": "object", "properties": _ACTIONS, "additionalProperties": False},
    },
    "keys.kind": {"const": "keys"},
    "keys.keys": {"minItems": 1, "maxItems": keys.MOST_KEYS},
    "key.name": NAMES,
    "key.tenant": {"pattern": f"^(?:{NAME})?$"},
    "key.sha256": {"pattern": "^(?:[0-9a-f]{64})?$"},
    "key.rate": {"pattern": f"^(?:{keys.ALLOWANCE})?$", "examples": ["600/m", "10/s"]},
    "key.tokens": {"pattern": f"^(?:{keys.ALLOWANCE})?$", "examples": ["1000000/d"]},
    "objective.latency_p99": DURATION,
    "upstreams.kind": {"const": "upstreams"},
    "upstreams.upstreams": {"maxItems": serving_upstreams.MAX_UPSTREAMS},
    "upstreams.discover": {"maxItems": serving_upstreams.MAX_UPSTREAMS},
    "upstreams.aliases": {
        "additionalProperties": {
            "anyOf": [
                {"type": "string", "minLength": 1},
                {
                    "type": "object",
                    "additionalProperties": SHARE,
                    "minProperties": 1,
                    "maxProperties": serving_upstreams.MAX_FALLBACKS,
                },
            ]
        },
        "maxProperties": serving_upstreams.MAX_NAMES,
        "examples": [{"gpt-4o": "llama-70b", "chat": {"llama-8b": "90%", "llama-9b": "10%"}}],
    },
    "upstreams.fallbacks": {
        "additionalProperties": {
            "type": "array",
            "items": {"type": "string", "minLength": 1},
            "minItems": 1,
            "maxItems": serving_upstreams.MAX_FALLBACKS,
        },
        "maxProperties": serving_upstreams.MAX_NAMES,
        "examples": [{"llama-70b": ["llama-8b"]}],
    },
    "upstreams.router": {"pattern": f"^(?:{NAME})?$"},
    "upstreams.timeout": DURATION,
    "upstreams.body": BYTES,
    "upstreams.bodies": BYTES,
    "upstreams.queue": {"minimum": 0, "maximum": serving_upstreams.MAX_LIMIT},
    "upstreams.hold": DURATION,
    "upstreams.stalled": DURATION,
    "upstreams.drain": DURATION,
    "upstream.url": {"pattern": f"^{serving_upstreams.URL}$", "examples": ["gpu1:8000"]},
    **{f"{of}.{name}": form for of in ("upstream", "discover") for name, form in _OF_UPSTREAMS.items()},
    "discover.dns": {"pattern": f"^(?:{serving_upstreams.DNS})?$", "examples": ["vllm.models.svc:8000"]},
    "discover.srv": {"pattern": f"^(?:{serving_upstreams.SRV})?$", "examples": ["_http._tcp.vllm.models.svc"]},
    "discover.job": {"pattern": f"^(?:{serving_upstreams.JOB})?$", "examples": ["vllm:8000", "vllm:8000+part"]},
    "discover.kubernetes": {
        "pattern": f"^(?:{serving_upstreams.KUBERNETES})?$",
        "examples": ["models/vllm:http"],
    },
    "discover.every": DURATION,
    "peers.urls": {"maxItems": serving_upstreams.MAX_PEERS, "examples": [["gw1:8080", "gw2:8080"]]},
    "peers.key_from": {"pattern": f"^(?:{servicefile.VARIABLE})?$", "examples": ["PEERS_KEY"]},
    "upstream.cache": {
        "anyOf": [{"type": "integer", "minimum": 0, "maximum": serving_upstreams.MAX_CACHE}, {"type": "null"}]
    },
    "concurrency.target_p99": DURATION,
    "concurrency.min": {"minimum": 1, "maximum": serving_upstreams.MAX_LIMIT},
    "retries.share": SHARE,
    "retries.most": {"minimum": 0, "maximum": serving_upstreams.MAX_UPSTREAMS},
    "ejection.failures": {"minimum": 1, "maximum": serving_upstreams.MAX_LIMIT},
    "ejection.pause": DURATION,
    "ejection.longest": DURATION,
    "ejection.slower": {"minimum": 0, "maximum": serving_upstreams.MAX_SLOWER},
    "ejection.least": DURATION,
    "health.path": {"pattern": f"^{serving_upstreams.PATH}$"},
    "health.delay": DURATION,
    "health.every": DURATION,
    "health.timeout": DURATION,
    "health.failures": {"minimum": 1, "maximum": serving_upstreams.MAX_LIMIT},
    "link.a": {"minimum": 0},
    "link.b": {"minimum": 0},
    "link.bandwidth": RATE,
    "link.latency": DURATION,
    "policy.kind": {"const": "policy"},
    "policy.name": NAMES,
    "policy.extends": {"enum": ["", *(recipe.name for recipe in RECIPES)]},
    "policy.order": {"anyOf": [{"enum": [*ORDERS, *PRESETS]}, _weights(RANK_TERMS)]},
    "policy.score": _weights(TERMS),
    "policy.turns": {"enum": list(TURNS)},
    "policy.weights": {
        "anyOf": [{"type": "string", "minLength": 1, "examples": ["learned.npz"]}, {"type": "object"}, {"type": "null"}]
    },
    "preempt.by": {"enum": list(YIELDS_BY)},
    "preempt.min_run": DURATION,
    "preempt.budget": COUNT_OR_NONE,
    "preempt.at_once": COUNT,
    "triggers.failed_checks": COUNT,
    "triggers.response_above": DURATION,
    "triggers.use_above": SHARE,
    "triggers.use_for": DURATION,
    "triggers.hot_above": SHARE,
    "triggers.cool_below": SHARE,
    "triggers.hot_for": DURATION,
    "triggers.settles": DURATION,
}
"""The values that a field takes, beyond its type."""

_RULES: dict[str, Schema] = {
    "job": {
        "if": {"properties": {"kind": {"const": "graph"}}, "required": ["kind"]},
        "then": {"properties": {"tasks": {"minProperties": 1}}, "required": ["tasks"]},
        "else": {
            "anyOf": [{"required": ["run"]}, {"required": ["artifacts"]}],
            "properties": {"tasks": {"maxProperties": 0}},
        },
    },
    "fleet": {"required": ["kind", "nodes"]},
    "policy": {"required": ["kind", "name"]},
    "world": {"required": ["kind"]},
    "service": {"required": ["kind", "name", "model"]},
    "upstreams": {
        "required": ["kind"],
        "anyOf": [
            {"properties": {"upstreams": {"minItems": 1}}, "required": ["upstreams"]},
            {"properties": {"discover": {"minItems": 1}}, "required": ["discover"]},
        ],
    },
    "DiscoverSpec": {"oneOf": [{"required": [field]} for field in serving_upstreams.SOURCES]},
    "notifications": {"required": ["kind"]},
    "keys": {"required": ["kind", "keys"]},
    "rules": {"required": ["kind", "rules"]},
    "shares": {"required": ["kind", "shares"]},
    "reservations": {"required": ["kind", "reservations"]},
    "calendar": {"required": ["kind", "events"]},
    "intensity": {"anyOf": [{"required": ["hours"]}, {"required": ["dated"]}]},
    "ReservationSpec": {
        "required": ["name", "from"],
        "anyOf": [{"required": ["nodes"]}, {"required": ["devices"]}],
    },
    "ShareSpec": {"oneOf": [{"required": [kind]} for kind in ("group", "tenant", "project", "user")]},
    "KeySpec": {"required": ["name"]},
    "TaskSpec": {"anyOf": [{"required": ["run"]}, {"required": ["artifacts"]}]},
}
"""The required fields of each file."""

MEANING = {key: of.field.meaning for key, of in _of_jobs()} | {
    "notifications.kind": "`notifications`.",
    "notifications.key": "Key that webhooks are signed with: HMAC-SHA256 of the body, in the header `Poise-Signature`.",
    "notifications.commands": "Commands that jobs may name, as lists of words. They run where the control plane runs.",
    "notifications.private": "Hosts at private addresses that every tenant may name in a webhook.",
    "notifications.notify": "Targets of jobs that name none themselves.",
    "notifications.notify-on": "When these are notified: at the `start`, `end` or `failure` of a job.",
    "notifications.incidents": "Targets of incidents: they get a notice when one opens and when it closes.",
    "notice.id": "Id of the notice: the same when it is delivered twice.",
    "notice.moment": "Event of the job: `start`, `end` or `failure`.",
    "notice.job": "Id of the job.",
    "notice.name": "Name of the job; empty if it has none.",
    "notice.tenant": "Tenant of the job.",
    "notice.user": "User of the job, as the client said.",
    "notice.status": "Status of the job: `running`, `done`, `failed`, `cancelled`, `skipped` and others.",
    "notice.exit_code": "Exit code of `poise wait`; `null` while the job is unfinished.",
    "notice.command": "Command of the job, or its number of tasks.",
    "notice.note": "Note on the job, such as the schedule that it is of.",
    "notice.submitted": "Time of submission, in seconds since 1970.",
    "notice.ended": "Time of the end, in seconds since 1970; 0 while the job is unfinished.",
    "notice.elapsed": "Seconds since the submission, or from there to the end.",
    "nemesis.kind": "`nemesis`.",
    "nemesis.name": "Name of the nemesis.",
    "nemesis.about": "Description in one sentence.",
    "nemesis.faults": "Faults that belong together.",
    "fault.fault": "Kind of fault.",
    "fault.every": "Mean time between two faults; the times are exponential.",
    "fault.lasts": "Mean duration. Instantaneous faults have none.",
    "fault.amount": "A probability in [0, 1] for lost or duplicated messages; seconds for delays and wrong clocks; a "
    "factor "
    "for slowness.",
    "fault.way": "Direction of a cut network: to the control plane (`up`), from it (`down`), or both.",
    "fleet.kind": "`fleet`.",
    "fleet.name": "Name of the fleet.",
    "fleet.nodes": "Nodes by name.",
    "fleet.throughputs": "Samples per second of a class of work, by class and device model (`cpu` for no device).",
    "node.cpu": "CPUs for placement. Commands share the CPUs of the machine.",
    "node.memory": "Memory for placement.",
    "node.count": "Number of equal nodes; their names end with a number.",
    "node.network": "Network bandwidth.",
    "node.latency": "Network latency to the other nodes of the fleet.",
    "node.zone": "Zone of the node. Gangs stay in one zone where possible.",
    "node.rack": "Rack of the node. Gangs stay in one rack of a zone where possible.",
    "node.labels": "Any strings. A job selects them with `resources.label`.",
    "node.processor": "Compute power of its CPUs.",
    "node.devices": "Its accelerators.",
    "node.links": "How its devices are connected: one mapping for every pair, or a list.",
    "node.exporters": "Exporters (Prometheus' for nodes, DCGM's) that report its load: `{node}:9100`, or a URL.",
    "processor.model": "Name of the model.",
    "processor.compute_power": "Rate in fp32: `2 TFLOPS`.",
    "processor.rates": "Rates by precision.",
    "processor.bandwidth": "Bandwidth of its memory.",
    "device.model": "A model of the catalogue (`H100`, `A100-80`, …) or any other name.",
    "device.count": "Number of devices.",
    "device.kind": "`gpu` by default, or the catalogue's.",
    "device.type": "Another spelling of `kind`.",
    "device.backend": "`cuda`, `rocm`, `cann`, …",
    "device.memory": "Memory of each device.",
    "device.compute_power": "Rate in fp32: `20 TFLOPS`.",
    "device.rates": "Rates by precision: `{fp16: 300 TFLOPS}`.",
    "device.bandwidth": "Bandwidth of its memory.",
    "device.supported_ops": "Operators that the device supports. All by default.",
    "device.power": "Power at full load: `300W`.",
    "device.price": "Price of one hour.",
    "device.share_cap": "Maximum part of the compute that shares may take together. `80%` by default.",
    "device.socket": "Socket to which it is attached.",
    "found.count": "Not allowed: entries cannot add devices.",
    "found.index": "Number of the device; `model` then sets its name. Without it, `model` and `kind` select the "
    "devices; without these, the entry applies to all.",
    "devices.kind": "`devices`.",
    "devices.devices": "Facts about devices of this machine.",
    "devices.processor": "Compute power of its CPUs.",
    "devices.zone": "Zone of this machine: `eu-1`. Gangs stay in one zone where possible.",
    "devices.rack": "Rack of this machine. Gangs stay in one rack of a zone where possible.",
    "devices.labels": "Labels of this machine. A job selects them with `resources.label`.",
    "link.a": "A device's number; without `a` and `b`, every pair.",
    "link.b": "The other's.",
    "link.kind": "`nvlink`, `pcie`, …",
    "link.bandwidth": "Bandwidth of the link.",
    "link.latency": "Latency of the link.",
    "policy.kind": "`policy`.",
    "policy.name": "Name in the log, where a digest of the file follows it.",
    "policy.extends": "A shipped recipe. Fields that the file leaves out have the values of that recipe.",
    "policy.order": "Order of waiting work: a known order, or weights of rank terms.",
    "policy.score": "Choice of nodes: weights of node terms. The highest weighted mean wins.",
    "policy.spread": "Score a node again after each task placed on it, instead of filling it.",
    "policy.turns": "Nodes in turn, regardless of their score.",
    "policy.overtake": "Let work that fits start before earlier work that does not fit.",
    "policy.reserve": "Keep room for work that has waited long.",
    "policy.preempt": "Rules of preemption. `null`: none.",
    "policy.elastic": "Let elastic units grow into idle room.",
    "policy.reallocate": "Move work off nodes that stay hot.",
    "policy.fairness": "How much a long wait counts against a short run, from 0 (shortest first) to 1.",
    "policy.triggers": "Events that force a round.",
    "policy.weights": "File with the network that picks the next start, written by `poise learn`. `null`: none.",
    "preempt.by": "Rank by which work preempts other work.",
    "preempt.min_run": "Minimum run time before work is preempted.",
    "preempt.budget": "Maximum number of preemptions of one unit. After that it is protected until it has run for half "
    "an hour, or, with `by: value`, until its next checkpoint.",
    "preempt.at_once": "Maximum number of units to preempt in one round, or the number of devices or tasks of the "
    "other unit if that is larger.",
    "triggers.failed_checks": "Heartbeats missed in a row.",
    "triggers.response_above": "Mean response of short work above this.",
    "triggers.use_above": "Use of the fleet above this.",
    "triggers.use_for": "Duration for which the use must stay above it.",
    "triggers.hot_above": "A node is hot at this use.",
    "triggers.cool_below": "A node is no longer hot at this use.",
    "triggers.hot_for": "Duration for which the use must stay there.",
    "triggers.settles": "Duration after which a new load level counts.",
    "service.kind": "`service`.",
    "service.name": "Name of the service. It answers at `/predict/NAME`, and its replicas are jobs `NAME-1`, `NAME-2`,"
    " …",
    "service.model": "The class that answers: `app.py:Model`, or `package.module:Model`.",
    "service.folder": "Working folder of the replicas, relative to the file's folder; by default that folder itself.",
    "service.python": "Interpreter of the replicas, in which `poise` can be imported. By default that of `poise`.",
    "service.process": "Name of a process that loads this model and those of other services. By default, each model "
    "has a process of its own.",
    "service.replicas": "Number of replicas, each a job. A range (`1..8`, `0..4`) follows the load.",
    "service.version": "Version of the model. Cached answers belong to one version. By default a hash of the model's "
    "file, its environment and its interpreter.",
    "service.version_of": "The model that this service is another version of. It answers at "
    "`/v2/models/MODEL/versions/VERSION`, beside the version that has the model's name.",
    "model.version_policy": "Versions in the folder to serve: `all`, the newest (`{latest: 2}`), or "
    "these (`[1, 3]`). The newest of them is the default version. By default `{latest: 1}`.",
    "latest.latest": "Number of the newest versions that are served.",
    "service.cache": "Cache answers: equal requests, byte by byte, get the cached answer, and equal requests at the "
    "same time are sent once. For models that give equal answers to equal requests. Off by default.",
    "cache.size": "Maximum bytes of all cached answers. The least recently used are evicted first.",
    "cache.ttl": "Lifetime of a cached answer.",
    "service.record": "Record requests in a file, for a replay.",
    "record.file": "Path, relative to this file's folder; lines of JSON are appended.",
    "record.share": "Fraction of all requests to record.",
    "record.size": "Maximum size of the file in bytes.",
    "service.canary": "A version on trial beside the current one: its differences, its requests and its rules. It "
    "replaces the current version if it meets the rules, and is ended otherwise.",
    "canary.model": "Its class, if different.",
    "canary.version": "As `version` of the service.",
    "canary.folder": "Working folder of its replicas, if different.",
    "canary.python": "Their interpreter, if different.",
    "canary.replicas": "Number of replicas during the trial. By default that of the current version.",
    "canary.precision": "Its precision, if different.",
    "canary.env": "Variables of its replicas, beside those of the service.",
    "canary.replay": "Recorded requests that both versions get first.",
    "canary.shadow": "Fraction of live requests of which it gets a copy; its answers are not used.",
    "canary.share": "Fractions of live requests that it answers, one stage after the other.",
    "canary.after": "Minimum number of its answers before a stage is passed.",
    "canary.errors": "Maximum of additional errors per request, compared with the current version.",
    "canary.latency": "Maximum P95, as a multiple of the current version's P95.",
    "canary.agreement": "Minimum fraction of equal answers to the same request, in a replay or shadow.",
    "canary.close": "Relative difference up to which numbers in answers count as equal.",
    "canary.promote": "Replace the current version after the last stage, instead of staying there.",
    "cache.same": "Requests that count as equal: equal `bytes`, or an equal `json` value, regardless of spaces and "
    "the order of keys.",
    "cache.redis": "URL, without a password, of a Redis in which gateways share answers. If it is slow or down, "
    "gateways work without it.",
    "cache.password_from": "Environment variable with the password of the Redis.",
    "service.scaling": "How the number of replicas follows the load, if it is a range.",
    "scaling.policy": "The scaler that decides. `forecast` by default.",
    "scaling.signals": "Signals to scale by. The largest result wins.",
    "scaling.target": "Target fraction of the capacity of replicas.",
    "scaling.rise": "Minimum duration of a request for more replicas before a rise.",
    "scaling.fall": "Minimum duration of a request for fewer replicas before a fall.",
    "scaling.idle": "Time without requests after which the last replica ends, if the range allows none.",
    "scaling.shared": "Training uses the other devices. While the objective is met, there are no more replicas than "
    "the load needs, or than the service's weight beside training allows.",
    "scaling.announced": "Expected load. Replicas start before it.",
    "announced.at": "Start, with its time zone: `2026-12-01T12:00:00Z`.",
    "announced.lasts": "Duration. An hour by default.",
    "announced.rate": "Number of requests per second.",
    "announced.load": "Factor on the forecast: `x3`, `0.5` or `30%`.",
    "announced.as": "Day of the week that this day is like.",
    "announced.name": "Name, shown in the reasons of the scaler.",
    "scaling.calendar": "Calendar with announced events, relative to this file: YAML, or iCalendar (`.ics`).",
    "scaling.window": "Time over which the load is averaged for a decision. A missed objective is decided on after 1 "
    "s.",
    "service.objective": "Objective of the service. A request that would miss it is refused at once.",
    "service.batch": "Maximum number of requests in one batch. The gateway learns the best size.",
    "service.batch_wait": "Maximum time that an idle replica waits for a fuller batch, to save CPU and device time. 0: "
    "it waits only if this shortens the total wait.",
    "service.concurrency": "Number of requests that a replica serves at once, if its model takes them one by one.",
    "service.workers": "Number of processes of a replica. They are a gang, and rank 0 answers. All start, or none.",
    "service.queue": "Maximum number of waiting requests. Further ones are refused.",
    "service.hold": "Maximum time that a request waits while no replica is ready. The default is `timeout`.",
    "service.timeout": "Time limit of a request.",
    "service.body": "Maximum size of a request's body, decompressed; 64 MiB at most.",
    "calendar.kind": "`calendar`.",
    "calendar.events": "The events.",
    "event.name": "Name of the event, shown in forecasts and reasons.",
    "event.from": "Start, on the clock of `time_zone`. A date is its midnight.",
    "event.for": "Duration. A day by default.",
    "event.time_zone": "Time zone of `from` and of `every`. `UTC` by default.",
    "event.every": "Recurrence rule, as RRULE in iCalendar.",
    "event.without": "Starts that a recurring event leaves out.",
    "event.service": "Service that it concerns.",
    "event.tenant": "Tenant whose work it concerns.",
    "event.class": "Class of work that it concerns. Without service, tenant and class: everything.",
    "event.load": "Factor on the load: `x3`, `0.5` or `30%`.",
    "event.as": "Day of the week that each day of the event is like.",
    "event.rate": "Minimum requests per second of the service.",
    "reservations.kind": "`reservations`.",
    "reservations.reservations": "The reservations. Others stay as they are.",
    "reservation.name": "Name of the reservation, unique for its tenant. The same name replaces it.",
    "reservation.from": "Earliest start: a date and time on the clock of `time_zone`, a time of day (the next one), or "
    "`+2h` from now.",
    "reservation.for": "Length of each window. Maintenance may have none: it lasts until it is cancelled.",
    "reservation.tenant": "Tenant that the places are kept for.",
    "reservation.maintenance": "Whether the nodes are drained for maintenance instead.",
    "reservation.nodes": "Number of nodes, or their names. Named nodes are not replaced when they fail.",
    "reservation.devices": "Number of devices, instead of nodes.",
    "reservation.model": "Model of the devices, or of devices of the nodes.",
    "reservation.every": "RRULE of iCalendar by which the reservation recurs. It needs `COUNT` or `UNTIL`.",
    "reservation.time_zone": "Time zone of `from` and of `every`. `UTC` by default.",
    "reservation.without": "Starts at which a recurring reservation does not take place.",
    "reservation.soft": "Whether nothing is preempted for it: work of others may make it begin late.",
    "reservation.release_after": "A window in which nothing of the tenant runs for this long is released. By default, "
    "none is.",
    "shares.kind": "`shares`.",
    "shares.shares": "The shares. An empty list removes all.",
    "shares.half_life": "Time after which half of a debt is forgotten.",
    "shares.prices": "Dollars per hour of a device, by model; of a core under `cpu`. By default, a model costs one "
    "dollar per hour for each 100 TFLOP/s in fp16.",
    "share.group": "Name of a group of tenants, for a share that stands for a group.",
    "share.tenant": "The tenant, for a share that stands for a tenant.",
    "share.project": "The project, for a share that stands for a project.",
    "share.user": "The user, for a share that stands for a user.",
    "share.name": "Unique name of the share; by default the group, tenant, project or user.",
    "share.in": "Name of the share above this one: a group for a tenant, a tenant or project for a user.",
    "share.weight": "Part of what is borrowed, relative to the shares beside this one.",
    "share.guaranteed": "Devices that the share gets whenever it needs them, by model, or `gpu` for any model; cores "
    "of work without devices under `cpu`. By default, the sum of the shares in it.",
    "share.limit": "Maximum number of devices that the share holds at once, by model, or `gpu` in all; cores of work "
    "without devices under `cpu`.",
    "share.lends": "Whether others may borrow what is guaranteed and not used.",
    "rules.kind": "`rules`.",
    "rules.rules": "The rules. An empty list removes all.",
    "rules.every": "Interval of evaluations.",
    "rules.budget": "Maximum number of actions of all rules in an hour.",
    "rule.name": "Name of the rule.",
    "rule.mode": "`off`, `shadow` (only record), `ask` (wait for approval) or `on`.",
    "rule.trigger": "Condition on which the rule fires: a text, or comparisons by signal that must all hold.",
    "rule.clear": "Condition on which it is over, and its actions are undone. By default: `trigger` does not hold.",
    "rule.sustained_for": "Time for which `trigger`, or `clear`, must hold.",
    "rule.cool_down": "Minimum time from the end of a firing to the next one for the same node or the fleet.",
    "rule.scope": "Names of the nodes that the rule is about. By default all.",
    "rule.actions": "Actions, which are undone when the rule is over.",
    "keys.kind": "`keys`.",
    "keys.keys": "All keys that the gateway accepts.",
    "key.name": "Name of the key in metrics and messages.",
    "key.tenant": "Tenant of the key's requests. By default that of the `token`, or `default`.",
    "key.sha256": "SHA-256 of the secret, in hexadecimal digits.",
    "key.token": "Id of a token of the control plane, instead of `sha256`.",
    "key.scopes": "Rights of the key: `ask` models, `read` metrics, `forget` cached answers. `[ask]` by default; for "
    "a `token`, the scopes of its role.",
    "key.models": "Models that the key may use; all by default.",
    "key.rate": "Maximum number of requests by `s`, `m`, `h` or `d`.",
    "key.tokens": "Maximum number of tokens of prompts and answers by `s`, `m`, `h` or `d`.",
    "service.precision": "Precision that the model computes in; `poise_train.smaller` reads it from `POISE_PRECISION`. "
    "`auto`: the fastest that is accurate enough. By default the `precision` of `resources`, else the model decides.",
    "service.late": "Requests that would miss the objective are refused (`refuse`), or wait until the service is idle,"
    " for a limited time (`defer`).",
    "service.openai": "Answer this route of OpenAI's API as well, as the model of this name: `embeddings`. Each input "
    "of a request counts as a separate request; the model answers with `embedding` and `tokens`.",
    "service.resources": "Resources of one replica, as for jobs.",
    "service.priority": "Class of the replicas. `high` by default.",
    "service.secrets": "Environment variables of the replicas with encrypted values, as for jobs. `poise serve` "
    "reads them each time it starts.",
    "service.env": "Environment variables of the replicas. `null` takes the value from the environment of `poise "
    "serve`.",
    "objective.latency_p99": "The latency that one answer in a hundred may exceed; 0: no objective.",
    "world.kind": "`world`.",
    "world.name": "Name in reports.",
    "world.restart": "Cost of stopping and restarting. Fields that are left out have the values of the trace's reader.",
    "world.scaling": "How gangs scale. Without it, N tasks are N times as fast.",
    "world.sharing": "Slowdown on a device whose whole remainder is used by other work; proportionally less if less "
    "is used.",
    "world.stragglers": "Nodes that are slow for some time.",
    "world.losses": "Nodes that are lost with their work, and come back.",
    "world.changes": "Nodes that join and leave at given times.",
    "world.telemetry": "Nodes report their load. Without it, the load is unknown.",
    "world.power": "Power draw of devices, as a fraction of their cap.",
    "world.serving": "Servers for `poise rehearse`. A replica is a node of `losses` and `changes`.",
    "serving.replicas": "Available replicas in the order in which they start; of upstreams, by their names.",
    "serving.start": "Time from the request for a replica until it serves.",
    "serving.spread": "Standard deviation of the duration of a batch, as a fraction of its mean.",
    "serving.hang_up": "Clients that do not wait for the answer.",
    "replica.name": "Name in reports, with a `count` `NAME-1` and so on; the name of an upstream.",
    "replica.count": "Number of equal replicas.",
    "replica.batch": "Duration of a batch by its size (for an upstream: by the number of concurrent requests): `[[1, "
    "30ms], [8, "
    "44ms]]`.",
    "replica.prompt": "Time before the first token, by the number of tokens in the prompt.",
    "replica.token": "Duration of one token of each answer, by the number of answers at once.",
    "replica.measured": "`prompt` and `token` from a file of measurements, in the form of Splitwise's "
    "`perf_model.csv`.",
    "replica.cache": "Tokens of earlier prompts that an upstream keeps, so that it does not read them again.",
    "replica.slots": "Number of requests that an upstream answers at once; others wait there. `0`: no limit.",
    "replica.price": "Price of one replica for an hour.",
    "measured.file": "Path, relative to the folder of this file.",
    "measured.model": "Name of the model in the file: `llama2-70b`.",
    "measured.hardware": "Name of the hardware in the file: `h100-80gb`.",
    "measured.devices": "Devices that hold the model together (`tensor_parallel`).",
    "hangup.share": "Fraction of all requests.",
    "hangup.after": "Time after which the client leaves, unless it has the answer.",
    "restart.checkpoint": "Interval of checkpoints while work runs. `0`: none, and lost work starts from the "
    "beginning.",
    "restart.save": "Time from the request to stop until the work has ended.",
    "restart.restore": "Time from the restart until the work continues.",
    "restart.saves": "Resume work where it was stopped, not at its latest checkpoint.",
    "scaling.loss": "Fraction of the work that is not parallel, by Amdahl's law.",
    "scaling.rack": "Remaining fraction of a gang's speed on several nodes of one rack.",
    "scaling.zone": "The same in several racks of one zone.",
    "scaling.apart": "The same in several zones.",
    "stragglers.share": "Fraction of all nodes, at any time.",
    "stragglers.factor": "Factor by which run times grow there.",
    "stragglers.lasts": "Mean duration.",
    "losses.mtbf": "Mean time from the start of a node to its loss.",
    "losses.mttr": "Mean time until it is back.",
    "losses.detected": "Time until the loss is noticed.",
    "change.at": "Time after the beginning of the trace.",
    "change.node": "A node of the fleet. A node whose first change is to join does not exist before.",
    "change.there": "Whether the node joins, or leaves.",
    "telemetry.every": "Interval of reports of each node.",
    "telemetry.noise": "Relative standard deviation.",
    "telemetry.delay": "Time until a report arrives.",
    "power.idle": "Power draw without work.",
    "power.busy": "Power draw with work.",
    "power.kg_per_kwh": "CO2e of a kWh: a number, or 24 or 168 by hour of the day or of the week. A trace begins on a "
    "Monday at midnight.",
    "power.flexible": "Time that each job may wait for cleaner hours.",
    "intensity.kind": "`intensity`.",
    "intensity.hours": "Values of the hours of a day (24), or of a week from Monday on (168), in UTC.",
    "intensity.dated": "Values of single hours, such as forecasts and measurements. They replace those of `hours`. If "
    "an hour has two values, the later one in the file counts.",
    "dated.from": "Beginning of the first hour, in UTC unless it has an offset.",
    "dated.hours": "Values of this hour and the following ones.",
    "intensity.unit": "CO2e or price of a kWh.",
    "budgets.kind": "`budgets`.",
    "budgets.budgets": "The budgets. An empty list removes all.",
    "budgets.time_zone": "Time zone in which periods begin.",
    "budget.name": "Name of the budget.",
    "budget.amount": "Amount of each period, in dollars or in device hours.",
    "budget.tenant": "Only work of this tenant counts.",
    "budget.project": "Only work of this project counts.",
    "budget.user": "Only work of this user counts.",
    "budget.every": "Period after which the budget is renewed.",
    "budget.alerts": "Percentages of the amount at which Poise alerts.",
    "budget.at_limit": "When the amount is spent: `alert` only, or `hold` new work until the budget is renewed.",
    "signin.kind": "`sign-in`.",
    "signin.issuer": "URL of the OpenID Connect issuer, exactly as the issuer writes it.",
    "signin.client": "Client id of Poise at the issuer.",
    "signin.rules": "Tenants of groups. The first rule that matches a group of the account applies.",
    "signin.secret_file": "File with the client secret, relative to the home. A public client has none.",
    "signin.scopes": "Scopes to request, besides `openid`.",
    "signin.groups": "Claim of the ID token that lists the groups of the account.",
    "signin.name": "Claim with the display name.",
    "signin.account": "Claim with the Unix account that runs the work. Choose a claim that people cannot edit.",
    "signin.lasts": "Lifetime of the token that Poise creates, from 5m to 24h.",
    "signinrule.group": "Group of the account. One `*` matches any part of the name.",
    "signinrule.tenant": "Tenant of its members. `*` stands for the part of the name that `*` in `group` matches.",
    "signinrule.role": "Role of its members.",
    "upstreams.kind": "`upstreams`.",
    "upstreams.upstreams": "The servers, each with OpenAI's API.",
    "upstreams.discover": "Sources of upstreams: names in DNS, jobs, Services of Kubernetes.",
    "upstreams.peers": "Gateways on other machines with the same upstreams. They share what they learn.",
    "upstreams.aliases": "Other names of models: one model, or several with their shares of the requests.",
    "upstreams.fallbacks": "Models that answer in place of a model while no upstream of it can.",
    "upstreams.router": "Router that chooses a server for each request. By default that of `poise serve`.",
    "upstreams.timeout": "Time from a request to the end of its answer, with waiting and retries.",
    "upstreams.objective": "Latency objective. Late answers are counted, and routers use it.",
    "upstreams.body": "Maximum size of a request's body.",
    "upstreams.bodies": "Maximum size of the bodies of all requests in progress. Further requests are refused.",
    "upstreams.queue": "Maximum number of requests that wait while all upstreams are at their limit, and of those that "
    "wait while none is up. Further ones are refused.",
    "upstreams.hold": "Maximum time that a request waits while no upstream of its model is up. 0: it is refused at "
    "once.",
    "upstreams.stalled": "Time without reading after which a client is disconnected.",
    "upstreams.drain": "Time for running requests to finish when the gateway is stopped.",
    "upstreams.retries": "Retries of failed requests on other upstreams.",
    "upstreams.ejection": "When an upstream gets no requests for some time.",
    "upstreams.health": "Health probes of upstreams.",
    "upstream.name": "Name in metrics and messages.",
    "upstream.url": "`host:port`, or a URL, with or without `/v1`.",
    **{
        f"{of}.{name}": meaning
        for of in ("upstream", "discover")
        for name, meaning in {
            "models": "Its models. By default those that its `/v1/models` lists.",
            "key_from": "Environment variable with the key for this upstream. Keys of clients are not forwarded.",
            "weight": "Weight, for routers that use it.",
            "limit": "Maximum number of concurrent requests; with `concurrency`, the upper limit.",
            "tier": "Backup tier. It gets requests only while all upstreams of lower tiers are full or down.",
        }.items()
    },
    "upstream.cache": "Tokens of earlier prompts that it keeps. By default learned from its metrics and its answers.",
    "discover.name": "Beginning of the names of the upstreams that are found.",
    "discover.dns": "Host and port. Each address of the host is an upstream.",
    "discover.srv": "Name of SRV records. Each of their servers is an upstream.",
    "discover.job": "Job and port. Each running task is an upstream, at the port of its node; with `+part`, part 3 of "
    "an array is at the port plus 3.",
    "discover.kubernetes": "Namespace, Service and port (its name or number). Each ready endpoint is an upstream.",
    "peers.urls": "Addresses of the gateways. The list may include this gateway.",
    "peers.key_from": "Environment variable with a key that all gateways share. It signs their reports.",
    "discover.every": "Interval of look-ups in DNS. SRV records are looked up again when they expire, if that is "
    "earlier.",
    "upstream.concurrency": "Let the number of concurrent requests follow latencies, from `min` to `limit`.",
    "concurrency.target_p99": "Target latency, which one answer in a hundred may exceed.",
    "concurrency.min": "Minimum number of concurrent requests.",
    "retries.share": "Maximum fraction of the requests of the last ten seconds, plus ten.",
    "retries.most": "Maximum number of retries of one request.",
    "ejection.failures": "Number of failures in a row: failed connections, 500, 502, 503, 504, and the time-out.",
    "ejection.pause": "Duration of the first ejection. It doubles each time.",
    "ejection.longest": "Maximum duration. After this time without a failure, the next ejection counts as the first.",
    "ejection.slower": "An answer that takes this many times as long for its size as on the other upstreams is a "
    "failure. `0`: never.",
    "ejection.least": "Answers faster than this never count as slow.",
    "health.path": "Path of the probe, a GET that must get 200.",
    "health.delay": "Time after the start in which failed probes do not count.",
    "health.every": "Interval of probes.",
    "health.timeout": "Time limit of a probe, and of connecting.",
    "health.failures": "Number of failed probes in a row after which an upstream gets no requests until a probe "
    "succeeds.",
}
"""The meaning of each field. A field of a mapping is prefixed with its parent; a field of a task is not."""


def schema_of(kind: str) -> Schema:
    """Return the JSON Schema (draft 2020-12) of one of `FILES`."""
    root = _ROOTS[kind]
    _, shapes = msgspec.json.schema_components([root], ref_template="#/$defs/{name}")
    definitions: dict[str, Schema] = {}
    for name, shape in shapes.items():
        whole = _within(name)
        fields = {field: _field(f"{whole}{field}", form) for field, form in shape["properties"].items()}
        definitions[name] = shape | {"properties": fields} | _RULES.get(name, {})
        definitions[name].pop("title")
    top = definitions.pop(root.__name__)
    about = {"$schema": _DIALECT, "$id": f"urn:poise:{kind}", "title": f"A Poise {kind} file"}
    rules = _RULES.get(kind, {})
    required = sorted({*top.pop("required"), *rules.get("required", ())})
    made = about | top | rules | {"required": required, "$defs": dict(sorted(definitions.items()))}
    return {key: _sorted_enums(value) for key, value in made.items()}


def _field(name: str, form: Schema) -> Schema:
    """Return a field with its meaning and accepted values. A form with its own type replaces the record's."""
    if name not in MEANING:
        name = name.replace("found.", "device.").replace("model.", "service.")
    taken = _FORMS.get(name, {})
    if taken.keys() & {"type", "anyOf", "enum", "const"}:
        form = {key: value for key, value in form.items() if key == "default"}
    if not form.get("default", True) and not isinstance(form["default"], bool | int | float):
        del form["default"]  # an empty default, which an editor need not offer
    return {"description": MEANING[name]} | form | taken


def _sorted_enums(value: Any) -> Any:
    """Sort enums, because the words of a literal type have no fixed order."""
    if isinstance(value, dict):
        return {key: sorted(item) if key == "enum" else _sorted_enums(item) for key, item in value.items()}
    return [_sorted_enums(item) for item in value] if isinstance(value, list) else value
