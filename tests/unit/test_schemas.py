"""The schemas are what Poise reads: every example is valid, and what Poise accepts is valid, whatever is changed."""

import copy
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from many import many

from poise.drivers.calendar import shifts
from poise.drivers.schemas import FILES, schema_of
from poise.drivers.yamlfile import load_yaml, parse_yaml
from poise.engine.scenario import compile_nemesis
from poise.errors import SpecError
from poise.model.budgets import compile_budgets
from poise.model.calendar import compile_calendar
from poise.model.devicefile import compile_devices
from poise.model.fleetfile import compile_fleet
from poise.model.intensity import compile_intensity
from poise.model.keys import compile_keys
from poise.model.notices import Notice, compile_notifications
from poise.model.reservations import Zones, compile_reservations
from poise.model.rules import compile_rules
from poise.model.servicefile import compile_service, served_versions
from poise.model.serving_upstreams import compile_upstreams
from poise.model.sharefile import compile_shares
from poise.model.sign_in import compile_sign_in
from poise.model.spec import compile_spec
from poise.model.worldfile import compile_world
from poise.policy.recipe import compile_recipe

ROOT = Path(__file__).resolve().parent.parent.parent
VALIDATORS = {kind: jsonschema.Draft202012Validator(schema_of(kind)) for kind in FILES}
MUTATIONS = many(200, 600)
"""Of each kind of file."""


def compile_job(document: Any) -> object:
    """As the command line does: variables without a value come from whoever submits."""
    document = copy.deepcopy(document)
    if isinstance(document, dict):
        tasks = document.get("tasks")
        for one in [document, *(tasks.values() if isinstance(tasks, dict) else ())]:
            env = one.get("env") if isinstance(one, dict) else None
            if isinstance(env, dict):
                env.update({name: "x" for name, value in env.items() if value is None})
    return compile_spec(document, wall=1_700_000_000.0)


def compile_model(document: Any) -> object:
    """As a folder with three versions."""
    if isinstance(document, dict):
        document = {"kind": "service", "name": "m", "model": "model.py:Model"} | document
        served_versions(document.pop("version_policy", {"latest": 1}), (1, 2, 3))
    return compile_service(document)


def read_notice(document: Any) -> object:
    """As a receiver reads it that is no stricter than its schema."""
    try:
        VALIDATORS["notice"].validate(document)
        return msgspec.convert(document, Notice)
    except (jsonschema.ValidationError, msgspec.ValidationError) as error:
        raise SpecError(str(error)) from None


def compile_at_a_time(document: Any) -> object:
    return compile_reservations(document, Zones(1_793_500_000.0, shifts))


def compile_in_zones(document: Any) -> object:
    return compile_budgets(document, Zones(1_793_500_000.0, shifts))


def compile_events(document: Any) -> object:
    return compile_calendar(document, Zones(1_793_500_000.0, shifts))


COMPILE: dict[str, Callable[[Any], object]] = {
    "job": compile_job,
    "fleet": compile_fleet,
    "policy": compile_recipe,
    "devices": compile_devices,
    "nemesis": compile_nemesis,
    "world": compile_world,
    "service": compile_service,
    "model": compile_model,
    "upstreams": compile_upstreams,
    "notifications": compile_notifications,
    "notice": read_notice,
    "keys": compile_keys,
    "rules": compile_rules,
    "shares": compile_shares,
    "reservations": compile_at_a_time,
    "intensity": compile_intensity,
    "sign-in": compile_sign_in,
    "budgets": compile_in_zones,
    "calendar": compile_events,
}


def kind_of(document: Any) -> str:
    said = str(document.get("kind", "job"))
    return said if said in FILES else "job"


def written() -> Iterator[tuple[str, Any]]:
    """Every YAML file that ships, and every one in a page."""
    for path in sorted([*(ROOT / "examples").glob("*.yaml"), *(ROOT / "src").rglob("*.yaml")]):
        yield path.name, load_yaml(path)
    for page in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]):
        for number, text in enumerate(re.findall(r"^```yaml\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)):
            yield f"{page.name}[{number}]", parse_yaml(text, page.name)


WRITTEN = dict(written())
MORE: dict[str, list[Any]] = {
    "job": [
        {"run": ["x"], "sweep": {"lr": [0.1, "a", True], "seed": "1..5", "zip": {"a": [1, 2], "b": "1..2"}}},
        {"run": "x", "sweep": [{"a": 1}, {"a": 2}], "at_most": 1, "merge": ["y"], "deadline": "2050-01-01T00:00:00Z"},
        {"run": "x", "deadline": {"by": "2050-01-01T00:00:00Z", "if-late": "cancel"}},
        {"kind": "graph", "tasks": {"a": {"run": "x", "deadline": {"by": 9}}}, "deadline": {"by": "1h"}},
        {"run": "x", "workers": {"min": 1, "max": 2}, "checkpoint": "5m", "retry": {"limit": 0, "when": []}},
        {"run": "x", "split": {"items": 9, "size": 2}, "resources": {"gpu": 1, "gpu_share": 0.5, "network": "1Gbit"}},
    ],
    "fleet": [
        {
            "kind": "fleet",
            "nodes": {
                "a": {
                    "cpu": "500m",
                    "memory": "1GiB",
                    "count": 2,
                    "processor": {"model": "x", "rates": {"fp32": "1 TFLOPS"}, "bandwidth": "1GB/s"},
                    "devices": [{"model": "x", "memory": "1GB", "power": "0.3kW", "price": "$4/h", "socket": 1},
                                {"type": "npu", "memory": 1}],
                    "links": [{"a": 0, "b": 1, "latency": "1us"}],
                }
            },
        }
    ],
    "devices": [
        {
            "kind": "devices",
            "devices": [{"index": 0, "memory": "20GB", "price": 0.6}, {"type": "GPU", "rates": {"fp16": "1 TFLOPS"}}],
            "processor": {"compute_power": "2 TFLOPS", "bandwidth": "200GB/s"},
        }
    ],
    "nemesis": [
        {"kind": "nemesis", "name": "a", "about": "b", "faults": [{"fault": "cut", "every": 9, "way": "up"}]},
    ],
    "world": [
        {
            "kind": "world",
            "name": "a",
            "restart": {"checkpoint": None, "save": 1, "saves": True},
            "changes": [{"at": "1h", "node": "n1", "there": False}],
            "power": {"idle": "10%", "busy": 0.5, "kg_per_kwh": 0.4},
            "serving": {
                "start": "30s",
                "spread": "5%",
                "hang_up": {"share": "1%", "after": "2s"},
                "replicas": [
                    {"name": "a", "count": 2, "batch": [[1, "30ms"], [8, 0.044]], "price": 4.1},
                    {"name": "b", "token": [[1, "45ms"]], "prompt": [[512, "94ms"]], "slots": 8},
                    {"name": "c", "measured": {"file": "p.csv", "model": "m", "hardware": "h"}},
                ],
            },
        }
    ],
    "service": [
        {
            "kind": "service",
            "name": "a",
            "model": "app.py:Model",
            "replicas": "0..4",
            "scaling": {"policy": "hpa", "signals": ["queue"], "target": "60%", "fall": "1m"},
            "objective": {"latency_p99": "200ms"},
            "late": "defer",
            "version": "2026-05",
            "cache": {
                "size": "1GiB",
                "ttl": 60,
                "same": "json",
                "redis": "rediss://cache@redis:6379/0",
                "password_from": "REDIS_PASSWORD",
            },
            "resources": {"gpu": 1, "gpu_memory": "12GiB"},
            "env": {"A": 1},
        },
        {"kind": "service", "name": "a", "model": "app.py:Model", "version": 2, "version_of": "b"},
    ],
    "model": [
        {"version_policy": "all", "replicas": 2, "canary": {"version": 3, "shadow": "10%"}},
        {"version_policy": {"latest": 2}, "resources": {"gpu": 1, "gpu_share": 0.5}},
        {"version_policy": [1, 3], "name": "m", "model": "net.py:Net"},
    ],
    "shares": [
        {
            "kind": "shares",
            "half_life": "1d",
            "prices": {"H100": 4.1, "cpu": "$0.03/h"},
            "shares": [
                {"group": "science", "weight": 2},
                {"tenant": "a", "in": "science", "guaranteed": {"gpu": 8, "cpu": "500m"}, "lends": False},
                {"project": "vision", "in": "a", "limit": {"H100": 2}},
                {"user": "ann", "in": "vision", "weight": 0.5, "name": "ann-of-vision"},
            ],
        }
    ],
    "calendar": [
        {
            "kind": "calendar",
            "events": [
                {
                    "name": "sale",
                    "from": "2026-12-01T20:00",
                    "for": "8h",
                    "every": "FREQ=WEEKLY;BYDAY=MO;COUNT=10",
                    "time_zone": "Europe/Zurich",
                    "without": ["20261214T200000"],
                    "tenant": "ann",
                    "load": "150%",
                },
                {"from": "2026-12-25", "as": "Sunday", "class": "train"},
                {"from": "2026-12-25T10:00Z", "rate": 50, "service": "chat"},
                {"from": "20:00", "load": 0.5},
            ],
        }
    ],
    "reservations": [
        {
            "kind": "reservations",
            "reservations": [
                {
                    "name": "nightly",
                    "tenant": "a",
                    "nodes": 2,
                    "model": "H100",
                    "from": "2026-12-01T20:00",
                    "for": "8h",
                    "every": "FREQ=WEEKLY;BYDAY=MO;COUNT=10",
                    "time_zone": "Europe/Zurich",
                    "without": ["20261214T200000"],
                    "soft": True,
                    "release_after": "15m",
                },
                {"name": "up", "maintenance": True, "nodes": ["n1"], "from": "+1h"},
                {"name": "part", "tenant": "b", "devices": 3, "from": "20:00", "for": "1h"},
            ],
        }
    ],
    "rules": [
        {
            "kind": "rules",
            "every": "30s",
            "budget": 5,
            "rules": [
                {
                    "name": "a",
                    "mode": "ask",
                    "trigger": {"memory_usage": ">90%"},
                    "clear": "memory_usage < 70%",
                    "sustained_for": "5m",
                    "cool_down": 60,
                    "scope": ["n1"],
                    "actions": [{"cordon": True}, {"notify": True}],
                },
                {"name": "b", "trigger": "waiting > 3", "actions": [{"set_policy": {"extends": "srtf"}}]},
                {
                    "name": "c",
                    "trigger": "hot",
                    "actions": [
                        {"change_priority": {"to": "low", "class": "train", "name": "a-*"}},
                        {"adjust_memory_limit": {"by": "50%", "most": "64GiB", "tenant": "ann"}},
                        {"scale_down_replicas": {"service": "ann:chat", "by": 2}},
                        {"mirror_traffic": {"service": "chat", "to": "chat-v2", "share": "10%"}},
                        {"notify": ["webhook:https://hooks.example.org/poise", "command:mail"]},
                    ],
                },
            ],
        },
    ],
    "keys": [
        {
            "kind": "keys",
            "keys": [
                {"name": "app", "tenant": "ann", "sha256": "a" * 64, "scopes": ["ask", "read"], "models": ["m"]},
                {"name": "ci", "token": "t3", "rate": "600/m", "tokens": "1000000/d"},
            ],
        }
    ],
    "notifications": [
        {
            "kind": "notifications",
            "key": "k",
            "commands": {"mail": ["mail", "ann@example.org"], "page": ["page"]},
            "private": ["hooks.internal"],
            "notify": ["command:mail", "webhook:https://hooks.example.org/poise?x=1"],
            "notify-on": ["failure", "start"],
        }
    ],
    "intensity": [
        {"kind": "intensity", "hours": [0.5, 1] * 12},
        {"kind": "intensity", "hours": [0.25] * 168, "unit": "$/kWh"},
        {"kind": "intensity", "dated": [{"from": "2026-12-01T00:00+01:00", "hours": [0.25, 1]}]},
    ],
    "budgets": [
        {
            "kind": "budgets",
            "time_zone": "UTC",
            "budgets": [
                {"name": "a", "tenant": "a", "project": "b", "user": "c d", "amount": "$5.5", "every": "year"},
                {"name": "b", "user": "b", "amount": " 200 h ", "alerts": [], "at_limit": "hold"},
            ],
        }
    ],
    "sign-in": [
        {
            "kind": "sign-in",
            "issuer": "https://login.example.com",
            "client": "poise",
            "secret_file": "secret",
            "scopes": ["groups", "offline_access"],
            "groups": "roles",
            "name": "email",
            "account": "unix_name",
            "lasts": "1h",
            "rules": [{"group": "team-*", "tenant": "*"}, {"group": "a", "tenant": "b", "role": "admin"}],
        }
    ],
    "notice": [
        {
            "id": "j1/end/0", "moment": "end", "job": "j1", "name": "", "tenant": "default", "user": "ann",
            "status": "done", "exit_code": 0, "command": "true", "note": "", "submitted": 1.5, "ended": 2.5,
            "elapsed": 1,
        }
    ],
    "upstreams": [
        {
            "kind": "upstreams",
            "upstreams": [
                {"name": "a", "url": "gpu1:8000", "models": ["m"], "key_from": "A_KEY", "weight": 2, "limit": 8},
                {"name": "b", "url": "https://gpu2/v1", "models": None, "weight": 0.5},
            ],
            "router": "least-outstanding",
            "timeout": "5m",
            "objective": {"latency_p99": "2s"},
            "retries": {"share": 0.1, "most": 1},
            "ejection": {"failures": 3, "pause": "10s", "slower": 2.5},
            "health": {"path": "/health", "every": "2s", "failures": 1},
        }
    ],
    "policy": [
        {
            "kind": "policy",
            "name": "a",
            "turns": "equal",
            "order": "arrival",
            "spread": True,
            "preempt": None,
            "triggers": {"use_above": "90%", "cool_below": 0.5, "hot_for": "3s", "failed_checks": 2},
        }
    ],
}  # fmt: skip


@pytest.mark.parametrize("kind", FILES)
def test_a_schema_is_one(kind: str) -> None:
    schema = schema_of(kind)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$id"] == f"urn:poise:{kind}"
    for shape in (schema, *schema["$defs"].values()):
        assert shape["additionalProperties"] is False
        assert all(field["description"] for field in shape["properties"].values())


@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_written_is_valid(name: str) -> None:
    document = WRITTEN[name]
    kind = kind_of(document)
    if kind == "job" and not document.keys() & {"run", "tasks", "artifacts"}:  # some fields of a task
        document |= {"run": "x"}
    VALIDATORS[kind].validate(document)
    COMPILE[kind](document)


@pytest.mark.parametrize("kind", FILES)
def test_what_is_accepted_is_valid(kind: str) -> None:
    """And so what is not valid is refused. Most changes are refused by both, or accepted by both."""
    chosen = random.Random(7)  # noqa: S311 — the same changes each time
    originals = [document for document in WRITTEN.values() if kind_of(document) == kind] + MORE[kind]
    outcomes = {(valid, accepted): 0 for valid in (True, False) for accepted in (True, False)}
    for turn in range(MUTATIONS):
        document = changed(copy.deepcopy(originals[turn % len(originals)]), chosen)
        valid = VALIDATORS[kind].is_valid(document)
        try:
            COMPILE[kind](document)
        except SpecError:
            outcomes[valid, False] += 1
        else:
            outcomes[valid, True] += 1
            assert valid, (document, [error.message for error in VALIDATORS[kind].iter_errors(document)])
    assert outcomes[True, True] > MUTATIONS / 20
    assert outcomes[False, False] > MUTATIONS / 3
    assert outcomes[True, False] < outcomes[False, False] / 3  # what no schema can know: names, sums, contradictions


VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 3, 2.5, 0.5, 1.0, 10**6, 1e300, "", "x", "1", "5m", " 8GiB ", "500m",
    "12 parsecs", "1h 30m",
    "10Gbit/s", "2 PFLOP", "90%", "auto", "1..3", "2..", "graph", "high", "lost", "class", "fleet", "policy", "poise",
    "a b", "ä", "1ns", "3 d", "1.5e3", "+1", "-5s", "700W", "$1", "0.4", "1_0", "٣", "1\n", [], ["x"], [1],
    ["lost"], [None],
    {}, {"x": 1}, {"x": "1"}, {"x": [1]}, {"x": {}}, {"min": 1, "max": 2}, {"run": "x"}, [{"x": 1}], [{}],
]  # fmt: skip
KEYS = [
    "x",
    "run",
    "name",
    "kind",
    "gpu",
    "cpu",
    "needs",
    "parts",
    "sweep",
    "zip",
    "model",
    "memory",
    "J",
    "a b",
    "9",
    "nodes",
]


def changed(document: Any, chosen: random.Random) -> Any:
    """One or two values replaced, removed, renamed or added, anywhere."""
    for _ in range(chosen.choice((1, 1, 2))):
        places = list(_places(document))
        within, key = chosen.choice(places)
        what = chosen.random()
        if what < 0.55:
            within[key] = copy.deepcopy(chosen.choice(VALUES))
        elif what < 0.7:
            del within[key]
        elif isinstance(within, dict):
            value = within[key] if what < 0.85 else copy.deepcopy(chosen.choice(VALUES))
            if what < 0.85:
                del within[key]
            within[chosen.choice(KEYS)] = value
        if not document:
            break
    return document


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from _places(value[key])
