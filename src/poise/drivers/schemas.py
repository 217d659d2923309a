"""JSON Schema of every file that Poise reads: job, fleet, policy, and what is said of devices.

Shapes come from the records that the files are read into; what a field means, and which texts and numbers it takes,
stands here. A schema is never stricter than Poise: what is accepted is valid. What is not valid is refused.
`poise schema` prints them; those in docs/reference are made of them.
"""

from typing import Any

import msgspec

from poise.engine import scenario
from poise.model import devicefile, fleetfile, keys, servicefile, serving_upstreams, spec, worldfile
from poise.model.catalogue import CATALOGUE
from poise.model.serving import MOST
from poise.policy.rank import ORDERS, PRESETS, RANK_TERMS
from poise.policy.recipe import MAX_TERMS, MAX_WEIGHT, RECIPES, TURNS, YIELDS_BY, PolicySpec
from poise.policy.replicas import SCALERS
from poise.policy.score import TERMS

Schema = dict[str, Any]

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
    "job": spec.JobSpec,
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

_NUMBER = r"[0-9]{1,40}(?:\.[0-9]{1,40})?"
_TIME_UNIT = "(?:[nN][sS]|[uU][sS]|[mM][sS]|[sS]|[mM]|[mM][iI][nN]|[hH]|[dD])"


def _quantity(pattern: str, *examples: str) -> Schema:
    return {
        "type": ["string", "number"],
        "pattern": rf"^\s*{pattern}\s*$",
        "patternErrorMessage": f"a quantity such as {' or '.join(examples)}",  # for editors that know it
        "minimum": 0,
        "examples": list(examples),
    }


_DURATION = _quantity(rf"(?:{_NUMBER}|(?:{_NUMBER}\s*{_TIME_UNIT}\s*)+)", "90s", "30m", "1h30m")
_BYTES = _quantity(rf"{_NUMBER}\s*(?:[kKmMgGtTpP]?[bB]|[kKmMgGtTpP][iI][bB]?)?", "8GiB", "500MB")
_CPU = _quantity(rf"{_NUMBER}\s*m?", "4", "500m")
_RATE = _quantity(rf"{_NUMBER}\s*[kKMGTP]?(?:bit|b|B|Byte|bps)(?:/s|ps)?", "10Gbit", "900GB/s")
_FLOPS = _quantity(
    r"[0-9]{1,20}(?:\.[0-9]{1,20})?(?:e[0-9]{1,2})?\s*(?:[kKMGTPE]?(?:FLOPS?|OPS?)(?:/s)?)?", "312 TFLOPS", "2 PFLOP"
)
_SHARE = _quantity(r"[0-9]{1,20}(?:\.[0-9]{1,20})?\s*%?", "90%")
_POWER = _quantity(r"[0-9]{1,9}(?:\.[0-9]{1,9})?\s*[mk]?W?", "700W")
_PRICE = _quantity(r"\$?\s*[0-9]{1,9}(?:\.[0-9]{1,9})?\s*\$?(?:/h)?", "4.0")
_MOMENT = {
    "type": ["string", "number"],
    "pattern": f"{_DURATION['pattern']}|^[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}.+$",
    "minimum": 0,
    "examples": ["30m", "2026-12-01T12:00:00Z"],
}

_NAME = spec.NAME
_NAMES = {"pattern": f"^{_NAME}$"}
_COUNT = {"type": "integer", "minimum": 1, "maximum": spec.MAX_TASKS}
_COUNT_OR_NONE = _COUNT | {"minimum": 0}
_RATES = {
    "type": "object",
    "propertyNames": {"enum": list(fleetfile.PRECISIONS)},
    "additionalProperties": _FLOPS,
}
_SWEPT = {"pattern": "^[a-z][a-z0-9_]{0,62}$"}
_SCALAR = {"type": ["string", "number", "boolean"]}
_VALUES = {
    "anyOf": [
        {"type": "string", "pattern": r"^\s*-?[0-9]{1,12}\s*\.\.\s*-?[0-9]{1,12}\s*(?::\s*[0-9]{1,12}\s*)?$"},
        {"type": "array", "items": _SCALAR, "minItems": 1},
    ],
    "examples": ["1..5"],
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
        "prefixItems": [{"type": "integer", "minimum": 1, "maximum": worldfile.MOST_ITEMS}, _DURATION],
        "items": False,
        "minItems": 2,
    },
    "maxItems": worldfile.MOST_SIZES,
    "examples": [[[1, "30ms"], [8, "44ms"]]],
}
_MAYBE_TIME: Schema = {"anyOf": [_DURATION, {"type": "null"}]}
_MAYBE_SHARE: Schema = {"anyOf": [_SHARE, {"type": "null"}]}

_FORMS: dict[str, Schema] = {
    "name": {"pattern": f"^(?:(?!j[0-9]+$){_NAME})?$"},
    "tasks": {"propertyNames": _NAMES},
    "artifacts": {"propertyNames": _NAMES},
    "env": {
        "propertyNames": {"pattern": "^[A-Za-z_][A-Za-z0-9_]*$"},
        "additionalProperties": {"type": ["string", "number", "null"]},
    },
    "begin": {"anyOf": [_MOMENT, {"type": "null"}]},
    "deadline": {"anyOf": [_MOMENT, {"$ref": "#/$defs/DeadlineSpec"}, {"type": "null"}]},
    "deadline.by": _MOMENT,
    "expect": {"anyOf": [_DURATION, {"type": "null"}]},
    "hang": _DURATION,
    "grace": {"anyOf": [_DURATION, {"type": "null"}]},
    "workers": {
        "anyOf": [
            _COUNT,
            {
                "type": "string",
                "pattern": r"^\s*[0-9]{1,6}(?:\s*\.\.\s*[0-9]{1,6})?\s*$",
                "examples": ["2..8"],
            },
            {"$ref": "#/$defs/WorkersSpec"},
        ]
    },
    "parts": _COUNT_OR_NONE,
    "at_most": _COUNT_OR_NONE,
    "sweep": {
        "anyOf": [
            {
                "type": "object",
                "propertyNames": _SWEPT,
                "properties": {
                    "zip": {"type": "object", "propertyNames": _SWEPT, "additionalProperties": _VALUES},
                },
                "additionalProperties": _VALUES,
                "minProperties": 1,
            },
            {
                "type": "array",
                "items": {"type": "object", "propertyNames": _SWEPT, "additionalProperties": _SCALAR},
                "minItems": 1,
            },
            {"type": "null"},
        ]
    },
    "weight": {"minimum": 0.001, "maximum": 1000},
    "checkpoint": {"anyOf": [_DURATION, {"$ref": "#/$defs/CheckpointSpec"}, {"type": "null"}]},
    "phases": {
        "anyOf": [
            {"const": "auto"},
            {
                "type": "object",
                "propertyNames": {"enum": list(spec.PHASES)},
                "additionalProperties": {"$ref": "#/$defs/PhaseSpec"},
            },
        ]
    },
    "phase.cpu": {"anyOf": [_CPU, {"type": "null"}]},
    "phase.device_memory": _SHARE,
    "resources.cpu": _CPU,
    "resources.memory": _BYTES,
    "policy.fairness": {"minimum": 0, "maximum": 1},
    "resources.gpu": {"minimum": 0, "maximum": 1024},
    "resources.gpu_memory": _BYTES,
    "resources.gpu_share": {"exclusiveMinimum": 0, "maximum": 1},
    "resources.gpu_model": {"examples": [entry.name for entry in CATALOGUE if entry.memory]},
    "resources.network": _RATE,
    "retry.backoff": _DURATION,
    "workers.min": _COUNT,
    "workers.max": _COUNT,
    "split.items": {"minimum": 1},
    "split.size": {"anyOf": [{"type": "integer", "minimum": 1}, {"const": "auto"}]},
    "split.min": {"minimum": 1},
    "split.max": {"minimum": 1},
    "work.flops": _FLOPS,
    "work.bytes": _BYTES,
    "work.input": _BYTES,
    "work.model": _BYTES,
    "checkpoint.every": _DURATION,
    "checkpoint.restore": _DURATION,
    "fleet.kind": {"const": "fleet"},
    "fleet.name": _NAMES,
    "fleet.nodes": {"propertyNames": _NAMES, "minProperties": 1},
    "fleet.throughputs": {
        "additionalProperties": {
            "type": "object",
            "additionalProperties": {"type": "number", "exclusiveMinimum": 0},
        }
    },
    "node.cpu": _CPU,
    "node.memory": _BYTES,
    "node.count": {"anyOf": [_COUNT | {"maximum": fleetfile.MAX_NODES}, {"type": "null"}]},
    "node.network": _RATE,
    "node.latency": _DURATION,
    "node.labels": {
        "propertyNames": _NAMES,
        "additionalProperties": {"type": ["string", "number", "boolean"]},
    },
    "processor.compute_power": {"anyOf": [_FLOPS, {"type": "null"}]},
    "processor.rates": _RATES,
    "processor.bandwidth": {"anyOf": [_RATE, {"type": "null"}]},
    "device.model": {"examples": [entry.name for entry in CATALOGUE]},
    "device.count": _COUNT | {"maximum": fleetfile.MAX_DEVICES},
    "device.memory": {"anyOf": [_BYTES, {"type": "null"}]},
    "device.compute_power": {"anyOf": [_FLOPS, {"type": "null"}]},
    "device.rates": _RATES,
    "device.bandwidth": {"anyOf": [_RATE, {"type": "null"}]},
    "device.power": {"anyOf": [_POWER, {"type": "null"}]},
    "device.price": {"anyOf": [_PRICE, {"type": "null"}]},
    "device.share_cap": {"anyOf": [_SHARE, {"type": "null"}]},
    "device.socket": {"anyOf": [{"type": "integer", "minimum": 0, "maximum": fleetfile.MAX_DEVICES}, {"type": "null"}]},
    "found.count": {"const": 1},
    "found.index": {
        "anyOf": [{"type": "integer", "minimum": 0, "maximum": fleetfile.MAX_DEVICES - 1}, {"type": "null"}]
    },
    "devices.kind": {"const": "devices"},
    "fault.every": _DURATION,
    "fault.lasts": _DURATION,
    "world.kind": {"const": "world"},
    "world.name": _NAMES,
    "world.sharing": _SHARE,
    "restart.checkpoint": _MAYBE_TIME,
    "restart.save": _MAYBE_TIME,
    "restart.restore": _MAYBE_TIME,
    "scaling.loss": _SHARE,
    "scaling.rack": _SHARE,
    "scaling.zone": _SHARE,
    "scaling.apart": _SHARE,
    "stragglers.share": _SHARE,
    "stragglers.factor": {"exclusiveMinimum": 1, "maximum": worldfile.MOST_FACTOR},
    "stragglers.lasts": _DURATION,
    "losses.mtbf": _DURATION,
    "losses.mttr": _DURATION,
    "losses.detected": _DURATION,
    "change.at": _DURATION,
    "telemetry.every": _DURATION,
    "telemetry.noise": _SHARE,
    "telemetry.delay": _DURATION,
    "power.idle": _MAYBE_SHARE,
    "power.busy": _MAYBE_SHARE,
    "power.kg_per_kwh": {"anyOf": [{"type": "number", "minimum": 0, "maximum": 10}, {"type": "null"}]},
    "serving.replicas": {"minItems": 1, "maxItems": worldfile.MOST_SERVERS},
    "serving.start": _DURATION,
    "serving.spread": _SHARE,
    "replica.name": _NAMES,
    "replica.count": _COUNT | {"maximum": worldfile.MOST_SERVERS},
    "replica.batch": _TAKES,
    "replica.prompt": _TAKES,
    "replica.token": _TAKES,
    "replica.slots": {"minimum": 0, "maximum": worldfile.MOST_ITEMS},
    "replica.price": {"minimum": 0, "maximum": worldfile.MOST_PRICE},
    "hangup.share": _SHARE,
    "hangup.after": _DURATION,
    "service.kind": {"const": "service"},
    "service.name": _NAMES,
    "service.model": {"pattern": "^[^:]+:.+$", "examples": ["app.py:Model"]},
    "service.replicas": {
        "anyOf": [
            _COUNT | {"maximum": servicefile.MOST_REPLICAS},
            {"type": "string", "pattern": r"^\s*[0-9]{1,6}\s*(?:\.\.\s*[0-9]{1,6}\s*)?$", "examples": ["1..8"]},
        ]
    },
    "service.cache": {"anyOf": [{"$ref": "#/$defs/CacheSpec"}, {"type": "null"}]},
    "service.record": {"anyOf": [{"$ref": "#/$defs/RecordSpec"}, {"type": "null"}]},
    "record.file": {"minLength": 1},
    "record.share": _SHARE,
    "record.size": _BYTES,
    "service.canary": {"anyOf": [{"$ref": "#/$defs/CanarySpec"}, {"type": "null"}]},
    "canary.model": {"pattern": "^(?:[^:]+:.+)?$", "examples": ["newer.py:Model"]},
    "canary.version": {"anyOf": [{"type": "string", "pattern": f"^(?:{_NAME})?$"}, {"type": "integer", "minimum": 0}]},
    "canary.replicas": {"minimum": 0, "maximum": servicefile.MOST_REPLICAS},
    "canary.shadow": _SHARE,
    "canary.share": {"items": _SHARE},
    "canary.after": _COUNT | {"maximum": servicefile.MOST_WAITING},
    "canary.errors": _SHARE,
    "canary.latency": {"minimum": 1, "maximum": 1000},
    "canary.agreement": _SHARE,
    "canary.close": {"minimum": 0, "maximum": 1},
    "cache.size": _BYTES,
    "cache.ttl": _DURATION,
    "cache.redis": {"pattern": f"^(?:{servicefile.REDIS})?$", "examples": ["redis://127.0.0.1:6379/0"]},
    "cache.password_from": {"pattern": f"^(?:{servicefile.VARIABLE})?$"},
    "service.version": {"anyOf": [{"type": "string", "pattern": f"^(?:{_NAME})?$"}, {"type": "integer", "minimum": 0}]},
    "scaling.target": _SHARE,
    "scaling.policy": {"pattern": f"^(?:{_NAME})?$", "examples": list(SCALERS)},
    "scaling.rise": _DURATION,
    "scaling.fall": _DURATION,
    "scaling.idle": _DURATION,
    "scaling.window": _DURATION,
    "announced.at": {"format": "date-time", "minLength": 1, "examples": ["2026-12-01T12:00:00Z"]},
    "announced.lasts": _DURATION,
    "announced.rate": {"exclusiveMinimum": 0, "maximum": servicefile.MOST_WAITING},
    "service.batch": _COUNT | {"maximum": MOST},
    "service.queue": _COUNT | {"maximum": servicefile.MOST_WAITING},
    "service.body": _BYTES,
    "service.timeout": _DURATION,
    "keys.kind": {"const": "keys"},
    "keys.keys": {"minItems": 1, "maxItems": keys.MOST_KEYS},
    "key.name": _NAMES,
    "key.tenant": {"pattern": f"^(?:{_NAME})?$"},
    "key.sha256": {"pattern": "^(?:[0-9a-f]{64})?$"},
    "key.rate": {"pattern": f"^(?:{keys.ALLOWANCE})?$", "examples": ["600/m", "10/s"]},
    "key.tokens": {"pattern": f"^(?:{keys.ALLOWANCE})?$", "examples": ["1000000/d"]},
    "objective.latency_p99": _DURATION,
    "upstreams.kind": {"const": "upstreams"},
    "upstreams.upstreams": {"minItems": 1, "maxItems": serving_upstreams.MAX_UPSTREAMS},
    "upstreams.router": {"pattern": f"^(?:{_NAME})?$"},
    "upstreams.timeout": _DURATION,
    "upstreams.body": _BYTES,
    "upstreams.bodies": _BYTES,
    "upstreams.queue": {"minimum": 0, "maximum": serving_upstreams.MAX_LIMIT},
    "upstreams.stalled": _DURATION,
    "upstreams.drain": _DURATION,
    "upstream.name": _NAMES,
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
    "concurrency.target_p99": _DURATION,
    "concurrency.min": {"minimum": 1, "maximum": serving_upstreams.MAX_LIMIT},
    "retries.share": _SHARE,
    "retries.most": {"minimum": 0, "maximum": serving_upstreams.MAX_UPSTREAMS},
    "ejection.failures": {"minimum": 1, "maximum": serving_upstreams.MAX_LIMIT},
    "ejection.pause": _DURATION,
    "ejection.longest": _DURATION,
    "ejection.slower": {"minimum": 0, "maximum": serving_upstreams.MAX_SLOWER},
    "ejection.least": _DURATION,
    "health.path": {"pattern": f"^{serving_upstreams.PATH}$"},
    "health.delay": _DURATION,
    "health.every": _DURATION,
    "health.timeout": _DURATION,
    "health.failures": {"minimum": 1, "maximum": serving_upstreams.MAX_LIMIT},
    "link.a": {"minimum": 0},
    "link.b": {"minimum": 0},
    "link.bandwidth": _RATE,
    "link.latency": _DURATION,
    "policy.kind": {"const": "policy"},
    "policy.name": _NAMES,
    "policy.extends": {"enum": ["", *(recipe.name for recipe in RECIPES)]},
    "policy.order": {"anyOf": [{"enum": [*ORDERS, *PRESETS]}, _weights(RANK_TERMS)]},
    "policy.score": _weights(TERMS),
    "policy.turns": {"enum": list(TURNS)},
    "preempt.by": {"enum": list(YIELDS_BY)},
    "preempt.min_run": _DURATION,
    "preempt.budget": _COUNT_OR_NONE,
    "preempt.at_once": _COUNT,
    "triggers.failed_checks": _COUNT,
    "triggers.response_above": _DURATION,
    "triggers.use_above": _SHARE,
    "triggers.use_for": _DURATION,
    "triggers.hot_above": _SHARE,
    "triggers.cool_below": _SHARE,
    "triggers.hot_for": _DURATION,
    "triggers.settles": _DURATION,
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

MEANING = {
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
    "kind": "`job` is one command; `graph` is a mapping of `tasks`.",
    "name": "Unique among unfinished jobs. Commands take it in place of the id.",
    "folder": "Where commands run. Relative to the file's folder; that folder itself by default.",
    "after": "Ids or names of jobs that must be done first. If one fails, this job is skipped.",
    "tasks": "The tasks of a graph, by name.",
    "calls": "Serve calls of functions: the `parts` are workers that are started as calls come. Made by `poise.task`.",
    "run": "A list is executed as it is; a text goes through `/bin/sh -c`.",
    "needs": "Tasks of the same graph that must be done first.",
    "resources": "What one task takes while it runs. See below.",
    "env": "Environment variables. `null` takes the value from whoever submits.",
    "priority": "Class of the task. In a graph, the job's class holds where a task names none. `medium` by default.",
    "begin": "Not before: a time from submission (`2h`) or a moment with its zone (`2026-12-01T02:00:00Z`).",
    "deadline": "A time from submission (`30m`) or a moment with its zone (`2026-12-01T12:00:00Z`); or a mapping.",
    "expect": "How long it should run, until finished runs of its class say more. Of an elastic gang: with its least "
    "workers. It says nothing of the `merge`.",
    "workers": "A gang: this many tasks, started together or not at all. `2..8` or `{min: 2, max: 8}` is elastic: it "
    "starts with the least or more, and is made larger or smaller at a checkpoint.",
    "parts": "Cut by data: this many tasks, each told its `POISE_PART` of `POISE_PARTS`.",
    "split": "Cut by data: as many tasks as the items make parts. See below.",
    "sweep": "A task for each combination of these values. See below. `${lr}` or `{lr}` in `run` and `env` stands for "
    "the value, which is also in `POISE_SWEEP_LR`.",
    "at_most": "Of the parts, or of the tasks of a sweep, so many run at once. 0: any number.",
    "merge": "A command that runs once every part is done, with the same resources. What needs this task waits for the "
    "merge, and a deadline holds for both. How long it runs is learned; to say more of it, make it a task of a graph.",
    "retry": "When to try again. See below.",
    "hang": "The command says at least so often that it gets on, by touching the file `$POISE_PROGRESS` "
    "(`poise.step()` in Python); silent for longer, it has hung and is stopped. 0: not watched; else 1 s or more.",
    "grace": "Time between SIGTERM and SIGKILL when the task is stopped: 10s, or 1s with `lease: exclusive`.",
    "lease": (
        "Whether it may be placed again while it is not known if it still runs on a silent node: `fenced`, at once; "
        "`exclusive`, when its node has stopped it in any case."
    ),
    "class": "Tasks of one class share what is learned of their run times.",
    "artifacts": "The same work built for several backends, by name (`cuda`, `rocm`, `cann`, `cpu`), instead of `run`. "
    "The one that is foreseen to be done first is started.",
    "work": "What one task has to do, for an estimate before anything was measured. See below.",
    "checkpoint": "How often the command saves its state, or a mapping. What yields loses what came since.",
    "phases": "What it asks for by the phase that its training tells: `initial`, `convergence` or `fine-tuning`; or "
    "`auto`. See below.",
    "preemptible": "Whether it may be asked to yield to more urgent work. `true` by default.",
    "weight": "Its business weight, for policies that look at it.",
    "serves": "What it answers for, and why it was asked for, where it goes on until it is ended. Work of lower "
    "classes makes room for it at once, and none makes it yield for being shorter. `poise serve` writes it for its "
    "replicas.",
    "resources.cpu": "CPUs: `2`, `0.5` or `500m`. Whole CPUs are bound to cores of their own.",
    "resources.memory": "Reserved and limited: `8GiB`. 0 reserves nothing and limits nothing.",
    "resources.gpu": "Devices.",
    "resources.gpu_memory": "Memory that each of these devices must have; of a share, what it takes. A device of 80 GB "
    "has `80GB`, and not `80GiB`.",
    "resources.gpu_share": "The part of each device's compute, so that others can share it, up to the device's "
    "`share_cap` of 0.8 or what is said of it; 1 is a device of its own.",
    "resources.gpu_kind": "`gpu`, `npu`, or as the fleet calls it.",
    "resources.gpu_model": "Any of these models will do; `A100` is every A100.",
    "resources.backend": "What the command was built for: `cuda`, `rocm`, `cann`. Only such devices will do.",
    "resources.precision": "What it would compute in. Devices that lack it do with the next wider one, as below.",
    "resources.ops": "Operators that the device must support.",
    "resources.network": "Bandwidth of the node's network that is reserved: `10Gbit`.",
    "workers.min": "It starts with so many tasks or more.",
    "workers.max": "So many it can use.",
    "split.items": "How many there are. Each part is told its own: from `POISE_ITEMS_FROM` up to `POISE_ITEMS_TO`.",
    "split.size": "Items in a part. `auto`: at most 10, fewer the busier and the less even the fleet is, and fewer "
    "still if a deadline asks for it.",
    "split.min": "The least that `auto` makes of it.",
    "split.max": "The most that `auto` makes of it.",
    "artifact.run": "As of a task.",
    "artifact.resources": "Instead of the task's.",
    "work.flops": "Floating-point operations: `2 PFLOP`.",
    "work.bytes": "Bytes of device memory that it moves.",
    "work.input": "Bytes of input.",
    "work.model": "Bytes of its model.",
    "phase.cpu": "At most so many CPUs; without it, as many as it asks for in all.",
    "phase.device_memory": "The part of the device memory that it asks for, or of each of its devices: `60%`. The "
    "command is told it as `POISE_DEVICE_MEMORY`.",
    "deadline.by": "A time from submission, or a moment with its zone.",
    "deadline.if-late": "What becomes of work whose deadline cannot be met. `run`: it goes on as work without a "
    "deadline. `cancel`: Poise cancels it, what needs it, and what only it needs. `refuse`: Poise refuses the "
    "submission unless the deadline is likely to be met.",
    "checkpoint.every": "How often its state is saved.",
    "checkpoint.restore": "How long it takes to go on from it.",
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
    "node.labels": "Any texts.",
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
    "link.a": "A device's number; without `a` and `b`, every pair.",
    "link.b": "The other's.",
    "link.kind": "`nvlink`, `pcie`, …",
    "link.bandwidth": "Of the link.",
    "link.latency": "Of the link.",
    "retry.limit": "Tries after the first one, 0 to 1000.",
    "retry.backoff": "Pause before the second try; it doubles with each one, up to a minute.",
    "retry.when": "Outcomes after which to try again. `lost` is tried again without a pause.",
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


def _within(name: str) -> str:
    """How the fields of a record are named in `MEANING`: those of a device that is found are a device's, mostly."""
    whole = name.removesuffix("Spec").lower()
    return "" if whole in ("job", "task") else f"{whole}."


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
