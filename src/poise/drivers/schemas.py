"""JSON Schema of every file that Poise reads: job, fleet, policy, and what is said of devices.

Shapes come from the records that the files are read into; what a field means, and which texts and numbers it takes,
stands here. A schema is never stricter than Poise: what is accepted is valid. What is not valid is refused.
`poise schema` prints them; those in docs/reference are made of them.
"""

from collections.abc import Iterator
from typing import Any, get_args

import msgspec

from poise.engine import scenario
from poise.model import devicefile, fleetfile, keys, servicefile, serving_upstreams, worldfile
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
from poise.model.job_fields import COUNT, COUNT_OR_NONE, RECORDS, JobSpec, records_in
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
    "upstreams": "Model servers behind one front: `poise serve FILE.yaml`",
    "keys": "Who may ask a gateway, and how much: `poise serve --keys FILE.yaml`",
}
"""The kinds of files, and what each is for."""

_ROOTS: dict[str, type[msgspec.Struct]] = {
    "job": JobSpec,
    "fleet": fleetfile.FleetSpec,
    "policy": PolicySpec,
    "devices": devicefile.DevicesSpec,
    "nemesis": scenario.Nemesis,
    "world": worldfile.WorldSpec,
    "service": servicefile.ServiceSpec,
    "upstreams": serving_upstreams.UpstreamsSpec,
    "keys": keys.KeysSpec,
}
_DIALECT = "https://json-schema.org/draft/2020-12/schema"

_POWER = quantity(r"[0-9]{1,9}(?:\.[0-9]{1,9})?\s*[mk]?W?", "700W")
_PRICE = quantity(r"\$?\s*[0-9]{1,9}(?:\.[0-9]{1,9})?\s*\$?(?:/h)?", "4.0")
_RATES = {
    "type": "object",
    "propertyNames": {"enum": list(fleetfile.PRECISIONS)},
    "additionalProperties": FLOPS,
}
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


def _within(name: str) -> str:
    """How the fields of a record are named in `MEANING`: those of a device that is found are a device's, mostly."""
    whole = name.removesuffix("Spec").lower()
    return "" if whole in ("job", "task") else f"{whole}."


def _of_jobs() -> Iterator[tuple[str, Declared]]:
    """The fields of a job file, named as in `MEANING`."""
    for record in RECORDS:
        for name, of in declared(record).items():
            yield f"{_within(record.__name__)}{name}", of


def _forms_of_jobs() -> dict[str, Schema]:
    """What these take: their own form, a record in its place, or nothing."""
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
    "device.count": COUNT | {"maximum": fleetfile.MAX_DEVICES},
    "device.memory": {"anyOf": [BYTES, {"type": "null"}]},
    "device.compute_power": {"anyOf": [FLOPS, {"type": "null"}]},
    "device.rates": _RATES,
    "device.bandwidth": {"anyOf": [RATE, {"type": "null"}]},
    "device.power": {"anyOf": [_POWER, {"type": "null"}]},
    "device.price": {"anyOf": [_PRICE, {"type": "null"}]},
    "device.share_cap": {"anyOf": [SHARE, {"type": "null"}]},
    "device.socket": {"anyOf": [{"type": "integer", "minimum": 0, "maximum": fleetfile.MAX_DEVICES}, {"type": "null"}]},
    "found.count": {"const": 1},
    "found.index": {
        "anyOf": [{"type": "integer", "minimum": 0, "maximum": fleetfile.MAX_DEVICES - 1}, {"type": "null"}]
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
    "power.kg_per_kwh": {"anyOf": [{"type": "number", "minimum": 0, "maximum": 10}, {"type": "null"}]},
    "serving.replicas": {"minItems": 1, "maxItems": worldfile.MOST_SERVERS},
    "serving.start": DURATION,
    "serving.spread": SHARE,
    "replica.name": NAMES,
    "replica.count": COUNT | {"maximum": worldfile.MOST_SERVERS},
    "replica.batch": _TAKES,
    "replica.prompt": _TAKES,
    "replica.token": _TAKES,
    "replica.slots": {"minimum": 0, "maximum": worldfile.MOST_ITEMS},
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
    "announced.rate": {"exclusiveMinimum": 0, "maximum": servicefile.MOST_WAITING},
    "service.batch": COUNT | {"maximum": MOST},
    "service.queue": COUNT | {"maximum": servicefile.MOST_WAITING},
    "service.body": BYTES,
    "service.timeout": DURATION,
    "keys.kind": {"const": "keys"},
    "keys.keys": {"minItems": 1, "maxItems": keys.MOST_KEYS},
    "key.name": NAMES,
    "key.tenant": {"pattern": f"^(?:{NAME})?$"},
    "key.sha256": {"pattern": "^(?:[0-9a-f]{64})?$"},
    "key.rate": {"pattern": f"^(?:{keys.ALLOWANCE})?$", "examples": ["600/m", "10/s"]},
    "key.tokens": {"pattern": f"^(?:{keys.ALLOWANCE})?$", "examples": ["1000000/d"]},
    "objective.latency_p99": DURATION,
    "upstreams.kind": {"const": "upstreams"},
    "upstreams.upstreams": {"minItems": 1, "maxItems": serving_upstreams.MAX_UPSTREAMS},
    "upstreams.router": {"pattern": f"^(?:{NAME})?$"},
    "upstreams.timeout": DURATION,
    "upstreams.body": BYTES,
    "upstreams.bodies": BYTES,
    "upstreams.queue": {"minimum": 0, "maximum": serving_upstreams.MAX_LIMIT},
    "upstreams.stalled": DURATION,
    "upstreams.drain": DURATION,
    "upstream.name": NAMES,
    "upstream.url": {"pattern": f"^{serving_upstreams.URL}$", "examples": ["gpu1:8000"]},
    "upstream.models": {
        "anyOf": [
            {
                "type": "array",
                "items": {"type": "string", "minLength": 1},
                "minItems": 1,
                "maxItems": serving_upstreams.MAX_MODELS,
            },
            {"type": "null"},
        ]
    },
    "upstream.key_from": {"pattern": f"^(?:{servicefile.VARIABLE})?$", "examples": ["GPU1_KEY"]},
    "upstream.weight": {
        "type": "number",
        "minimum": 1 / serving_upstreams.MAX_WEIGHT,
        "maximum": serving_upstreams.MAX_WEIGHT,
    },
    "upstream.limit": {"minimum": 1, "maximum": serving_upstreams.MAX_LIMIT},
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
"""What a field takes beyond its type."""

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
    "upstreams": {"required": ["kind", "upstreams"]},
    "keys": {"required": ["kind", "keys"]},
    "KeySpec": {"required": ["name"]},
    "TaskSpec": {"anyOf": [{"required": ["run"]}, {"required": ["artifacts"]}]},
}
"""What has to be there."""

MEANING = {key: of.field.meaning for key, of in _of_jobs()} | {
    "nemesis.kind": "`nemesis`.",
    "nemesis.name": "What the nemesis is called.",
    "nemesis.about": "What it does, in one sentence.",
    "nemesis.faults": "Faults that belong together.",
    "fault.fault": "What breaks.",
    "fault.every": "How often, on average: the times between two are exponential.",
    "fault.lasts": "How long, on average; what happens at one moment does not last.",
    "fault.amount": "A chance in [0, 1] for messages that are lost or doubled; seconds for what is late or wrong; "
    "a factor for what takes longer.",
    "fault.way": "Of a way that is cut: to the control plane (`up`), from it (`down`), or both.",
    "fleet.kind": "`fleet`.",
    "fleet.name": "What it is called.",
    "fleet.nodes": "By name.",
    "fleet.throughputs": "Samples per second of a class of work, by class and device model (`cpu` for no device).",
    "node.cpu": "CPUs that are placed; commands share what the machine has.",
    "node.memory": "Memory that is placed.",
    "node.count": "So many nodes alike, named with a number.",
    "node.network": "Bandwidth.",
    "node.latency": "To the rest of the fleet.",
    "node.zone": "Gangs keep to one zone where they can.",
    "node.rack": "And in a zone to one rack.",
    "node.labels": "Any texts. A job asks for them with `resources.label`.",
    "node.processor": "What its CPUs can do.",
    "node.devices": "Its accelerators.",
    "node.links": "How its devices are connected: one mapping for every pair, or a list.",
    "node.exporters": "Exporters (Prometheus' for nodes, DCGM's) that tell how busy it is: `{node}:9100`, or a URL.",
    "processor.model": "What it is called.",
    "processor.compute_power": "Its rate in fp32: `2 TFLOPS`.",
    "processor.rates": "By precision.",
    "processor.bandwidth": "Of its memory.",
    "device.model": "One that the catalogue knows (`H100`, `A100-80`, …) or any other name.",
    "device.count": "So many.",
    "device.kind": "`gpu` by default, or the catalogue's.",
    "device.type": "Another spelling of `kind`.",
    "device.backend": "`cuda`, `rocm`, `cann`, …",
    "device.memory": "Of each.",
    "device.compute_power": "Its rate in fp32: `20 TFLOPS`.",
    "device.rates": "By precision: `{fp16: 300 TFLOPS}`.",
    "device.bandwidth": "Of its memory.",
    "device.supported_ops": "Only these operators; any, unless given.",
    "device.power": "At full load: `300W`.",
    "device.price": "Of an hour.",
    "device.share_cap": "Of its compute, what shares may take together: `80%`, unless given.",
    "device.socket": "The socket it is attached to.",
    "found.count": "Devices are found, not made.",
    "found.index": "The device with this number; `model` is then what it is to be called. Without it, `model` and "
    "`kind` tell which devices are meant, and none means all.",
    "devices.kind": "`devices`.",
    "devices.devices": "What is said of devices that are found here.",
    "devices.processor": "What its CPUs can do.",
    "devices.zone": "The zone of this machine: `eu-1`. Gangs keep to one zone where they can.",
    "devices.rack": "Its rack. In a zone, gangs keep to one rack where they can.",
    "devices.labels": "Labels of this machine. A job asks for them with `resources.label`.",
    "link.a": "A device's number; without `a` and `b`, every pair.",
    "link.b": "The other's.",
    "link.kind": "`nvlink`, `pcie`, …",
    "link.bandwidth": "Of the link.",
    "link.latency": "Of the link.",
    "policy.kind": "`policy`.",
    "policy.name": "What the log calls it, with a digest of what the file says.",
    "policy.extends": "A shipped recipe; what the file leaves out is as there.",
    "policy.order": "Who comes first: a known order, or weights of rank terms.",
    "policy.score": "Where it goes: weights of node terms. The highest weighted mean wins.",
    "policy.spread": "Score a node again after each task that it takes, instead of filling it.",
    "policy.turns": "Nodes in turn, whatever their score.",
    "policy.overtake": "Whether what fits may start before what came first and does not fit.",
    "policy.reserve": "Keep room for what has waited long.",
    "policy.preempt": "Who may make whom yield. `null`: nobody.",
    "policy.elastic": "Let elastic units grow into idle room.",
    "policy.reallocate": "Move work off nodes that stay hot.",
    "policy.fairness": "How much a long wait counts against a short run, from 0 (shortest first) to 1.",
    "policy.triggers": "What forces a round.",
    "preempt.by": "By which rank one goes before another.",
    "preempt.min_run": "Nobody is asked to yield before it has run for so long.",
    "preempt.budget": "How often one unit is asked; then again after half an hour at a stretch.",
    "preempt.at_once": "Units asked in one round, or as many as the other has devices or tasks.",
    "triggers.failed_checks": "Heartbeats missed in a row.",
    "triggers.response_above": "A mean response of short work that is longer.",
    "triggers.use_above": "A use of the fleet that is larger.",
    "triggers.use_for": "And for so long.",
    "triggers.hot_above": "A node is hot at this use.",
    "triggers.cool_below": "Until it is at this use or less.",
    "triggers.hot_for": "Each for so long.",
    "triggers.settles": "A load level counts after so long.",
    "service.kind": "`service`.",
    "service.name": "What it is called: it answers at `/predict/NAME`, and its replicas are jobs `NAME-1`, `NAME-2`, …",
    "service.model": "The class that answers: `app.py:Model`, or `package.module:Model`.",
    "service.folder": "Where replicas run. Relative to the file's folder; that folder itself by default.",
    "service.python": "The interpreter of the replicas, in which `poise` can be imported. That of `poise` by default.",
    "service.replicas": "Processes that answer, each a job of its own. Of a range (`1..8`, `0..4`) as many as the load "
    "asks for.",
    "service.version": "What tells this model from others of its name: an answer that is kept is of one version. By "
    "default a hash of the model's file, its environment and its interpreter.",
    "service.cache": "Keep answers: who asks the same again, byte by byte, is told the same, and many who ask the same "
    "at once are answered by asking once. For models that answer the same to the same. Without it nothing is kept.",
    "cache.size": "Bytes of all answers that are kept; those that were not used for longest go first.",
    "cache.ttl": "For how long an answer is good.",
    "service.record": "Write what is asked to a file, to ask it again.",
    "record.file": "Lines of JSON are added to it. Relative to this file's folder.",
    "record.share": "The part of all requests that is written.",
    "record.size": "When it has so many bytes, nothing more is written.",
    "service.canary": "A version on trial beside the one that serves: what is other in it, what it is asked, and what "
    "it must hold to. It takes the place of the other if it does, and is ended if not.",
    "canary.model": "Its class, if that is another.",
    "canary.version": "As `version` of the service.",
    "canary.folder": "Where its replicas run, if elsewhere.",
    "canary.python": "Their interpreter, if another.",
    "canary.replicas": "Processes during the trial. As many as of the version that serves by default.",
    "canary.precision": "What it is asked to compute in, if that is other.",
    "canary.env": "Variables of its replicas, beside those of the service.",
    "canary.replay": "Recorded requests that both versions are asked before all else.",
    "canary.shadow": "The part of live requests of which it is sent a copy, whose answer nobody gets.",
    "canary.share": "The parts of live requests that it answers, one stage after the other.",
    "canary.after": "So many answers of it before a stage may be passed.",
    "canary.errors": "So many more errors in a request than of the other version at most.",
    "canary.latency": "So many times the other version's P95 at most.",
    "canary.agreement": "The part of answers to the same request, in a replay or shadow, that must be the same.",
    "canary.close": "Numbers in answers that differ by no more than this part are the same.",
    "canary.promote": "Whether it takes the place of the other after the last stage, or stays there.",
    "cache.same": "What asks the same: the same `bytes`, or the same value in `json`, whatever its spaces and the "
    "order of its keys.",
    "cache.redis": "The URL of a Redis in which gateways keep answers for each other, without a password. If it is "
    "slow or away, they go on without it.",
    "cache.password_from": "The variable of the environment that holds the password of the Redis.",
    "service.scaling": "How the number of replicas follows the load, where it is a range.",
    "scaling.policy": "The scaler that decides. `forecast` by default.",
    "scaling.signals": "What is looked at; the largest wish wins.",
    "scaling.target": "The part of what replicas can take that is aimed at.",
    "scaling.rise": "How long a wish for more must have lasted.",
    "scaling.fall": "How long a wish for fewer must have lasted.",
    "scaling.idle": "When nothing has come for so long, the last replica goes, if there may be none.",
    "scaling.shared": "Training has the rest of the devices: while the objective is kept, no more replicas than what "
    "comes needs, or than the service's weight beside training gives it.",
    "scaling.announced": "What is known to come: replicas are there before it.",
    "announced.at": "From when on, with its time zone: `2026-12-01T12:00:00Z`.",
    "announced.lasts": "For how long. An hour by default.",
    "announced.rate": "So many requests a second.",
    "scaling.window": "The load is seen over so long, and then decided on; an objective that is missed, after 1 s.",
    "service.objective": "What the service promises. Who cannot be answered in time is refused when it comes.",
    "service.batch": "Requests in one batch at most. Which size is best is learned.",
    "service.queue": "Requests that wait at most; who comes then is refused.",
    "service.timeout": "When a request is given up.",
    "service.body": "Maximum size of a request's body, decompressed; 64 MiB at most.",
    "keys.kind": "`keys`.",
    "keys.keys": "All keys that the gateway lets in.",
    "key.name": "Name of the key in metrics and messages.",
    "key.tenant": "Tenant that the key's requests belong to. That of the `token`, or `default`.",
    "key.sha256": "SHA-256 of the secret, in hexadecimal digits.",
    "key.token": "Id of a token of the control plane, instead of `sha256`.",
    "key.scopes": "What the key may do: `ask` models, `read` metrics, `forget` cached answers. `[ask]` by default; of "
    "a `token`, what its role has.",
    "key.models": "Models that the key may ask; all by default.",
    "key.rate": "Maximum number of requests by `s`, `m`, `h` or `d`.",
    "key.tokens": "Maximum number of tokens of prompts and answers by `s`, `m`, `h` or `d`.",
    "service.precision": "What the model is asked to compute in; `poise.precision` reads it from `POISE_PRECISION`. "
    "`auto`: the quickest that keeps enough. By default the `precision` of `resources`, else the model decides.",
    "service.late": "Who is foreseen to miss the objective is refused (`refuse`), or waits until there is nothing else "
    "to do, and not for ever (`defer`).",
    "service.openai": "Answer this route of OpenAI's API as well, as the model of this name: `embeddings`. Each input "
    "of a request is a question of its own, to which the model answers with `embedding` and `tokens`.",
    "service.resources": "What one replica takes: as of jobs.",
    "service.priority": "Class of the replicas. `high` by default: they go before work that nobody waits for.",
    "service.env": "Environment variables of the replicas. `null` takes the value from whoever serves.",
    "objective.latency_p99": "The latency that one answer in a hundred may exceed; 0: none is promised.",
    "world.kind": "`world`.",
    "world.name": "What reports call it.",
    "world.restart": "What stopping and coming back costs. What is left out is as the reader of the trace says.",
    "world.scaling": "How gangs scale. Without it so many tasks are so many times as fast.",
    "world.sharing": "How much longer work takes on a device of which others hold all the rest; less of it the less.",
    "world.stragglers": "Nodes that are slow for a while.",
    "world.losses": "Nodes that are lost with all that they run, and come back.",
    "world.changes": "Nodes that join and leave at given times.",
    "world.telemetry": "Nodes tell how busy they are; without it nobody knows.",
    "world.power": "What devices draw, as a part of their cap.",
    "world.serving": "What answers requests, for `poise rehearse`; a replica is a node of `losses` and `changes`.",
    "serving.replicas": "Those that can be had, in the order in which they are started; of upstreams, by their names.",
    "serving.start": "From when a replica is asked for until it serves.",
    "serving.spread": "Standard deviation of what a batch takes, as a part of its mean.",
    "serving.hang_up": "Who does not wait for the answer.",
    "replica.name": "What reports call it; with a `count`, `NAME-1` and so on. Of an upstream its name.",
    "replica.count": "So many that are alike.",
    "replica.batch": "What a batch of so many takes (at an upstream: so many at once): `[[1, 30ms], [8, 44ms]]`.",
    "replica.prompt": "What is done before the first token, by the tokens that are read.",
    "replica.token": "What one token of each answer takes, by how many are written at once.",
    "replica.measured": "Both from a file of measurements, in the form of Splitwise's `perf_model.csv`.",
    "replica.slots": "An upstream does so many requests at once, the others wait there; `0`: as many as it is sent.",
    "replica.price": "Of one, an hour.",
    "measured.file": "From the folder of this file.",
    "measured.model": "As the file calls it: `llama2-70b`.",
    "measured.hardware": "As the file calls it: `h100-80gb`.",
    "measured.devices": "Devices that hold the model together (`tensor_parallel`).",
    "hangup.share": "Of all requests.",
    "hangup.after": "After so long, if it is not answered by then.",
    "restart.checkpoint": "How often work saves itself while it runs; `0`: never, and what is lost begins anew.",
    "restart.save": "From being asked to stop until it is gone.",
    "restart.restore": "From its start until it gets on, when it comes back.",
    "restart.saves": "Whether it goes on where it was stopped, and not at its latest checkpoint.",
    "scaling.loss": "The part of the work that is not done in parallel, by Amdahl's law.",
    "scaling.rack": "What is left of a gang's speed on several nodes of one rack.",
    "scaling.zone": "In several racks of one zone.",
    "scaling.apart": "In several zones.",
    "stragglers.share": "Of all nodes, at any time.",
    "stragglers.factor": "How many times as long work takes there.",
    "stragglers.lasts": "Mean time.",
    "losses.mtbf": "Mean time of one node from its coming to its loss.",
    "losses.mttr": "Mean time until it is back.",
    "losses.detected": "After how long its loss is noticed.",
    "change.at": "After the beginning of the trace.",
    "change.node": "A node of the fleet. One whose first change is to join is not there before.",
    "change.there": "It joins, or leaves.",
    "telemetry.every": "How often each node tells it.",
    "telemetry.noise": "Relative standard deviation.",
    "telemetry.delay": "After so long it is heard.",
    "power.idle": "With nothing on it.",
    "power.busy": "With something on it.",
    "power.kg_per_kwh": "CO2e of a kWh.",
    "upstreams.kind": "`upstreams`.",
    "upstreams.upstreams": "The servers, each with OpenAI's API.",
    "upstreams.router": "Who decides where a request goes. The default of `poise serve` if none is named.",
    "upstreams.timeout": "From a request to the end of its answer, with waiting and tries again.",
    "upstreams.objective": "What is promised of answers. Later ones are counted, and routers see it.",
    "upstreams.body": "The largest body of a request.",
    "upstreams.bodies": "Of all requests that are being answered, together; further ones are refused.",
    "upstreams.queue": "Requests that wait while all upstreams have as many as they may; further ones are refused.",
    "upstreams.stalled": "A client that takes nothing of its answer for so long is dropped.",
    "upstreams.drain": "When it is stopped, running requests have so long to finish.",
    "upstreams.retries": "Requests that failed and are tried again elsewhere.",
    "upstreams.ejection": "When an upstream gets no requests for a while.",
    "upstreams.health": "How upstreams are asked whether they are well.",
    "upstream.name": "What metrics and messages call it.",
    "upstream.url": "`host:port`, or a URL, with or without `/v1`.",
    "upstream.models": "The models that it is asked for; without it, those that its `/v1/models` tells.",
    "upstream.key_from": "The variable of the environment with the key that it is sent. Keys of clients stay here.",
    "upstream.weight": "Its share, for routers that look at it.",
    "upstream.limit": "Requests that it is sent at once; at most, where that follows `concurrency`.",
    "upstream.concurrency": "Requests at once follow what answers take, from `min` to `limit`.",
    "concurrency.target_p99": "The latency that one answer in a hundred may exceed, by which they are fewer or more.",
    "concurrency.min": "There are no fewer.",
    "retries.share": "Of the requests of the last ten seconds so many at most, and ten more.",
    "retries.most": "Of one request.",
    "ejection.failures": "So many in a row: failed connections, 500, 502, 503, 504, and the time-out.",
    "ejection.pause": "For the first time; each further time for twice as long.",
    "ejection.longest": "At most; and without a failure for so long, the next one is a first one again.",
    "ejection.slower": "An answer that took so many times as long for its size as at the other upstreams is a failure; "
    "`0`: none is.",
    "ejection.least": "What took less is not slow.",
    "health.path": "A GET of it has to be answered with 200.",
    "health.delay": "Misses in the first so long do not count.",
    "health.every": "From one probe to the next.",
    "health.timeout": "A probe that takes longer is a miss; and so long a connection may take.",
    "health.failures": "So many misses in a row and it gets no requests until one goes well.",
}
"""What each field means. Fields of a mapping are named with what they lie in, those of a task alone."""


def schema_of(kind: str) -> Schema:
    """The JSON Schema (draft 2020-12) of one of `FILES`."""
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
    """A field with its meaning, and what it takes. A form with a type of its own takes the place of the record's."""
    if name not in MEANING:
        name = name.replace("found.", "device.")
    taken = _FORMS.get(name, {})
    if taken.keys() & {"type", "anyOf", "enum", "const"}:
        form = {key: value for key, value in form.items() if key == "default"}
    if not form.get("default", True) and not isinstance(form["default"], bool | int | float):
        del form["default"]  # nothing, which an editor need not offer
    return {"description": MEANING[name]} | form | taken


def _sorted_enums(value: Any) -> Any:
    """Words of a literal type come in no order of their own."""
    if isinstance(value, dict):
        return {key: sorted(item) if key == "enum" else _sorted_enums(item) for key, item in value.items()}
    return [_sorted_enums(item) for item in value] if isinstance(value, list) else value
