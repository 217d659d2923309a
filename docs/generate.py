"""Writes docs/reference/ from the code, so that it cannot drift from it.

    python docs/generate.py            write every page
    python docs/generate.py --check    say which pages are out of date, and end with 1 if any is
    python docs/generate.py --numbers  copy the measured figures of .bench/results.json into docs/numbers.md

Commands come from click, errors from `errors.CODES` and its tree, fields from the JSON Schema of `JobSpec`, routes from
the OpenAPI document. Only what a field *means* is written here, in `MEANING`; a field without a meaning is an error.
"""

import argparse
import difflib
import inspect
import itertools
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast, get_args
from unittest.mock import Mock

import click
import msgspec

import poise as poise_package
from poise import errors
from poise.cli.complete import FLAGS
from poise.cli.group import poise
from poise.cli.main import COMMANDS, GIVES_CHILD_CODE, OWN_FAILURE
from poise.config import Home
from poise.control.api import make_app
from poise.control.guard import PUBLIC
from poise.model import devicefile, fleetfile, jobs, spec
from poise.model.catalogue import CATALOGUE, TERA, device_of, per_watt
from poise.policy import recipe
from poise.policy.feasible import FALLBACKS
from poise.policy.suites import POLICIES

KINDS = {"JOB": "job", "NODE": "node", "USER": "user", "FILE": "file", "--] COMMAND": "command"}
"""What is to be completed, by how a metavar begins."""

WORDS = {
    "--priority": list(get_args(spec.PriorityName)),
    "--precision": [name for name in get_args(spec.ResourcesSpec.__annotations__["precision"]) if name],
    "--policy": [*POLICIES, ":files"],
}
"""Words that a flag takes though it is open to others, or checks them elsewhere."""

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "docs" / "reference"
RESULTS = ROOT / ".bench" / "results.json"
NUMBERS = ROOT / "docs" / "numbers.md"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
HEADER = "<!-- Made by docs/generate.py. Change the code, then run `make docs`. -->\n\n"

MEANING = {
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
    "deadline": "A time from submission (`30m`) or a moment with its zone (`2026-12-01T12:00:00Z`).",
    "expect": "How long it should run, until finished runs of its class say more. Of an elastic gang: with its least "
    "workers. It says nothing of the `merge`.",
    "workers": "A gang: this many tasks, started together or not at all. `2..8` or `{min: 2, max: 8}` is elastic: it "
    "starts with the least or more, and is made larger or smaller at a checkpoint.",
    "parts": "Cut by data: this many tasks, each told its `POISE_PART` of `POISE_PARTS`.",
    "split": "Cut by data: as many tasks as the items make parts. See below.",
    "merge": "A command that runs once every part is done, with the same resources. What needs this task waits for the "
    "merge, and a deadline holds for both. How long it runs is learned; to say more of it, make it a task of a graph.",
    "retry": "When to try again. See below.",
    "grace": "Time between SIGTERM and SIGKILL when the task is stopped.",
    "class": "Tasks of one class share what is learned of their run times.",
    "artifacts": "The same work built for several backends, by name (`cuda`, `rocm`, `cann`, `cpu`), instead of `run`. "
    "The one that is foreseen to be done first is started.",
    "work": "What one task has to do, for an estimate before anything was measured. See below.",
    "checkpoint": "How often the command saves its state, or a mapping. What yields loses what came since.",
    "preemptible": "Whether it may be asked to yield to more urgent work. `true` by default.",
    "weight": "Its business weight, for policies that look at it.",
    "resources.cpu": "CPUs: `2`, `0.5` or `500m`. Whole CPUs are bound to cores of their own.",
    "resources.memory": "Reserved and limited: `8GiB`. 0 reserves nothing and limits nothing.",
    "resources.gpu": "Devices.",
    "resources.gpu_memory": "Memory that each of these devices must have; of a share, what it takes. A device of 80 GB "
    "has `80GB`, and not `80GiB`.",
    "resources.gpu_share": "The part of each device's compute, up to 0.8, so that others can share it; 1 is a device "
    "of its own.",
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
    "device.index": "The device with this number; `model` is then what it is to be called. Without it, `model` and "
    "`kind` tell which devices are meant, and none means all.",
    "devices.kind": "`devices`.",
    "devices.devices": "What is said of devices that are found here.",
    "devices.processor": "What its CPUs can do.",
    "device.socket": "The socket it is attached to.",
    "link.a": "A device's number; without `a` and `b`, every pair.",
    "link.b": "The other's.",
    "link.kind": "`nvlink`, `pcie`, …",
    "link.bandwidth": "Of the link.",
    "link.latency": "Of the link.",
    "retry.limit": "Tries after the first one, 0 to 1000.",
    "retry.backoff": "Pause before the second try; it doubles with each one, up to a minute.",
    "retry.when": "Outcomes after which to try again. `lost` is tried again without a pause.",
}


def main() -> int:
    parser = argparse.ArgumentParser(description="write docs/reference/ from the code")
    parser.add_argument("--check", action="store_true", help="write nothing; end with 1 if a page is out of date")
    parser.add_argument("--numbers", action="store_true", help="copy .bench/results.json into docs/numbers.md")
    options = parser.parse_args()
    if options.numbers:
        return write_numbers()
    if options.check:
        stale = [path for path, text in pages() if not _same(path, text)]
        for path in stale:
            print(f"out of date: {path.relative_to(ROOT)}", file=sys.stderr)
        return 1 if stale else 0
    REFERENCE.mkdir(parents=True, exist_ok=True)
    for path, text in pages():
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(ROOT))
    return 0


def pages() -> Iterator[tuple[Path, str]]:
    """Every generated page and its text."""
    makers: dict[str, Callable[[], str]] = {
        "commands.md": commands,
        "errors.md": error_codes,
        "python.md": python,
        "exit-codes.md": exit_codes,
        "job-file.md": job_file,
        "job.schema.json": job_schema,
        "fleet-file.md": fleet_file,
        "fleet.schema.json": fleet_schema,
        "policy.schema.json": policy_schema,
        "devices.md": devices,
        "devices.schema.json": devices_schema,
        "api.md": routes,
    }
    for name, make in makers.items():
        yield REFERENCE / name, make()
    yield ROOT / "src" / "poise" / "cli" / FLAGS.name, flags()


def _same(path: Path, text: str) -> bool:
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return True
    before = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    change = difflib.unified_diff(before, text.splitlines(), "on disk", "from the code", lineterm="", n=0)
    for line in itertools.islice(change, 12):
        print(line, file=sys.stderr)
    return False


# --- commands --------------------------------------------------------------------------------------------------------


def commands() -> str:
    """Each command with its usage, its help and its options, as click has them."""
    lines = [
        "# Commands",
        "",
        "Every command works on the home named by `POISE_HOME`, or `~/.poise`. Data goes to stdout, talk to stderr.",
        "With `--json` a command prints exactly one JSON value, in [these units](api.md#units). See also",
        "[exit codes](exit-codes.md).",
        "",
        *_table(
            ("command", "does"), [(f"[`poise {name}`](#poise-{name})", text) for name, (_, text) in COMMANDS.items()]
        ),
    ]
    root = click.Context(poise, info_name="poise")
    for name in COMMANDS:
        command = cast(click.Command, poise.get_command(root, name))
        context = click.Context(command, info_name=name, parent=root)
        usage = " ".join(["poise", name, *command.collect_usage_pieces(context)])
        lines += ["", f"## poise {name}", "", "```", usage, "```", "", " ".join((command.help or "").split())]
        options = [option for option in command.params if isinstance(option, click.Option)]
        records = [record for option in options if (record := option.get_help_record(context))]
        rows = [(f"`{left}`", " ".join(right.split())) for left, right in records]
        lines += ["", *_table(("option", "meaning"), rows)]
    return HEADER + "\n".join(lines) + "\n"


def flags() -> str:
    """What can be completed, out of the commands: their flags, and by their metavars which names these take."""
    tree = _branch(poise, click.Context(poise, info_name="poise"))
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(of)}" for name, of in tree.pop("commands").items())
    return f'{json.dumps(tree)[:-1]}, "commands": {{\n{lines}\n}}}}\n'


def _branch(command: click.Command, context: click.Context) -> dict[str, Any]:
    commands = {}
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = cast(click.Command, command.get_command(context, name))
            text = COMMANDS[name][1] if command is poise else child.get_short_help_str(80)
            commands[name] = _branch(child, click.Context(child, info_name=name, parent=context)) | {"help": text}
    known: dict[str, Any] = {}
    for option in command.get_params(context):
        record = option.get_help_record(context) if isinstance(option, click.Option) else None
        if isinstance(option, click.Option) and record is not None:
            values = None if option.is_flag else _values(option, context)
            about = {"help": " ".join(record[1].split()), "values": values, "repeatable": option.multiple}
            known |= dict.fromkeys((*option.opts, *option.secondary_opts), about)
    arguments = [param for param in command.params if isinstance(param, click.Argument)]
    return {
        "commands": commands,
        "flags": known,
        "arguments": [_values(argument, context) for argument in arguments],
        "repeatable": any(argument.nargs == -1 for argument in arguments),
        "runs": any("COMMAND" in argument.make_metavar(context) for argument in arguments),
    }


def _values(param: click.Parameter, context: click.Context) -> list[str] | str:
    """The words that it takes, the kind of names, or nothing that could be completed."""
    if isinstance(param.type, click.Choice):
        return list(param.type.choices)
    name = max(param.opts, key=len)
    if name in WORDS:
        return WORDS[name]
    metavar = param.make_metavar(context).strip("[].")
    for word, kind in KINDS.items():
        if metavar.startswith(word):
            return kind
    return ""


# --- errors ----------------------------------------------------------------------------------------------------------


def error_codes() -> str:
    """Codes, and the tree that they belong to."""
    lines = [
        "# Errors",
        "",
        "An error has a code that does not change, one sentence, and, where they help, the place (`where`), what was",
        'needed, what there is, and a hint that can be typed. With `--json` it is `{"error": {…}}` on stdout; the',
        "API answers with the same record.",
        "",
        "`E1…` is about what was asked for: exit code 1. `E2…` is about Poise or its machine: exit code 2 (`E204`: 1).",
        "",
        *_table(("code", "meaning"), [(f"`{code}`", text) for code, text in errors.CODES.items()]),
        "",
        "## The tree",
        "",
        *_table(
            ("exception", "exit code", "HTTP status", "code unless another is named"),
            [
                (f"{'· ' * depth}`{kind.__name__}`", str(kind.exit_code), str(kind.status), f"`{kind.default_code}`")
                for depth, kind in _tree(errors.PoiseError, 0)
            ],
        ),
    ]
    return HEADER + "\n".join(lines) + "\n"


def _tree(kind: type[errors.PoiseError], depth: int) -> Iterator[tuple[int, type[errors.PoiseError]]]:
    yield depth, kind
    for child in kind.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from _tree(child, depth + 1)


def python() -> str:
    """The public names of the package, with their signatures and what their docstrings say."""
    lines = ["# Python", "", "`import poise` has these names; everything else may change. All of it is typed.", ""]
    for name in poise_package.__all__:
        thing = getattr(poise_package, name)
        lines += [f"## `poise.{name}`", "", *_described(thing, name)]
        own = vars(thing) if inspect.isclass(thing) and not issubclass(thing, Exception) else {}
        for method, function in own.items():
            if method.startswith("_") or not (inspect.isfunction(function) or isinstance(function, property)):
                continue
            lines += [f"### `{name}.{method}`", "", *_described(function, method)]
    return HEADER + "\n".join(lines).rstrip() + "\n"


def _described(thing: Any, name: str) -> list[str]:
    """A signature, where it says something, and a docstring."""
    lines = []
    if inspect.isfunction(thing):
        shown = str(inspect.signature(thing)).replace("self, ", "").replace("(self)", "()").replace("~", "")
        shown = re.sub(r"(collections\.abc|typing|poise\.[a-z.]+)\.(?=[A-Z])", "", shown)
        lines += ["```python", f"{name}{shown}", "```", ""]
    text = inspect.getdoc(thing if not isinstance(thing, property) else thing.fget) or ""
    return [*lines, *text.splitlines(), ""] if text else lines


def exit_codes() -> str:
    """What commands end with."""
    own = " and ".join(f"`poise {name}`" for name in COMMANDS if name in GIVES_CHILD_CODE)
    lines = [
        "# Exit codes",
        "",
        *_table(
            ("code", "meaning"),
            [
                ("0", "Done."),
                (
                    str(errors.InputError.exit_code),
                    "What you asked for cannot be done as asked (`E1…`); usage errors too.",
                ),
                (str(errors.Fault.exit_code), "Poise or its machine failed (`E2…`)."),
                ("130", "Interrupted with Ctrl-C."),
            ],
        ),
        "",
        "Whoever reads a pipe may stop reading: `poise events | head` ends with 0.",
        "",
        "`poise up --policy`, `--fleet` or `--no-fleet` ends with 1 (`E121`) while it is up under another policy or",
        "with other nodes; nothing has changed then. With what it is up under already, it ends with 0.",
        "",
        "`poise doctor` ends with 1 if it finds something that does not work or is open to others (`fail`), else",
        "with 0.",
        "",
        f"{own} end with the command's own code instead:",
        "",
        *_table(
            ("code", "meaning"),
            [
                ("0", "Every task is done."),
                ("1 … 255", "The code of the first task that failed; of `wait JOB.TASK`, of that task."),
                ("128 + N", "A signal N ended it: 137 is SIGKILL, 143 is SIGTERM."),
                ("137", "Also: it went over its memory limit. `poise show` tells the two apart."),
                ("130", "The job or the task was cancelled, or the command was interrupted with Ctrl-C."),
                (
                    str(OWN_FAILURE),
                    "Poise itself failed, was used wrongly, could not run or keep the task, or `--timeout` has passed.",
                ),
            ],
        ),
        "",
        "## How an attempt ends",
        "",
        "`poise show` and `--json` name the outcome:",
        "",
        *_table(("outcome", "meaning"), [(f"`{name}`", text) for name, text in _outcomes()]),
        "",
        f"A retry policy may name {', '.join(f'`{name}`' for name in jobs.RETRYABLE)}.",
    ]
    return HEADER + "\n".join(lines) + "\n"


def _outcomes() -> list[tuple[str, str]]:
    """Out of the docstring that follows `Outcome`; it has one sentence for each."""
    source = Path(str(jobs.__file__)).read_text(encoding="utf-8")
    text = source.split('"""How an attempt ended.', 1)[1].split('"""', 1)[0]
    said = [part.strip().rstrip(".") for part in " ".join(text.split()).split("·")]
    return [(part.split("`")[1], part.split("`", 2)[2].strip()) for part in said]


# --- the job file ----------------------------------------------------------------------------------------------------


def job_schema() -> str:
    return _schema(spec.JobSpec, "A Poise job file")


def fleet_schema() -> str:
    """With the shapes of what the records leave open, since a node's mistakes are told by the node's name."""
    schema = json.loads(_schema(fleetfile.FleetSpec, "A Poise fleet file"))
    records = (fleetfile.NodeSpec, fleetfile.ProcessorSpec, fleetfile.DeviceSpec, fleetfile.LinkSpec)
    _, shapes = msgspec.json.schema_components(records, ref_template="#/$defs/{name}")
    definitions = schema["$defs"] | shapes

    def either(name: str) -> dict[str, Any]:
        return {"$ref": f"#/$defs/{name}"}

    definitions["FleetSpec"]["properties"]["nodes"]["additionalProperties"] = either("NodeSpec")
    node = definitions["NodeSpec"]["properties"]
    node["processor"] |= {"anyOf": [either("ProcessorSpec"), {"type": "null"}]}
    node["devices"]["items"] = either("DeviceSpec")
    links = [either("LinkSpec"), {"type": "array", "items": either("LinkSpec")}, {"type": "null"}]
    node["links"] |= {"anyOf": links}
    schema["$defs"] = definitions
    return json.dumps(_sorted_enums(schema), indent=2, ensure_ascii=False) + "\n"


def devices_schema() -> str:
    schema = json.loads(_schema(devicefile.DevicesSpec, "A Poise file of devices"))
    records = (devicefile.FoundSpec, fleetfile.ProcessorSpec)
    _, shapes = msgspec.json.schema_components(records, ref_template="#/$defs/{name}")
    shapes["FoundSpec"]["properties"].pop("count")  # devices are found, not made
    properties = schema["$defs"]["DevicesSpec"]["properties"]
    properties["devices"]["items"] = {"$ref": "#/$defs/FoundSpec"}
    properties["processor"] = {"anyOf": [{"$ref": "#/$defs/ProcessorSpec"}, {"type": "null"}], "default": None}
    schema["$defs"] |= shapes
    return json.dumps(_sorted_enums(schema), indent=2, ensure_ascii=False) + "\n"


def devices() -> str:
    """The catalogue, and every field of `devices.yaml`."""
    precisions = fleetfile.PRECISIONS
    definitions = json.loads(devices_schema())["$defs"]
    rows = []
    for entry in CATALOGUE:
        watt = per_watt(device_of(entry.name, 0, memory=entry.memory)).get("fp16")
        rows.append(
            (
                f"`{entry.name}`",
                entry.kind,
                f"`{entry.backend}`",
                f"{entry.memory / 10**9:.4g} GB" if entry.memory else "",
                f"{entry.bandwidth // 10**9} GB/s" if entry.bandwidth else "",
                *(f"{entry.rates[name] / TERA:g}" if name in entry.rates else "" for name in precisions),
                f"{entry.power // 1000} W" if entry.power else "",
                f"{watt / TERA:.2f}" if watt else "",
            )
        )
    lines = [
        "# Devices",
        "",
        "What is known of a device comes from four places, and figure by figure the first in this list is believed:",
        "`declared` by a person, `measured` by `poise bench-devices`, said by the `driver`, or in the `catalogue`.",
        "`poise nodes --json` names the place of each figure under `sources`.",
        "",
        "## The catalogue",
        "",
        "Peak rates in TFLOPS (int8: TOPS), matrix units included, without sparsity, with accumulation in fp32 where a",
        "precision has two rates; the last column is TFLOPS per watt in fp16. What no maker's document says is empty.",
        "No maker publishes which operators a device supports: it is taken to support all, unless it is declared.",
        "",
        *_table(
            ("model", "kind", "backend", "memory", "bandwidth", *precisions, "power", "per watt"),
            rows,
        ),
        "",
        "A driver's name is recognised with the words around it (`NVIDIA A100-SXM4-80GB`). A device with another",
        "amount of memory than its model is a part of one, and gets no figures: a slice, or one die of two.",
        "",
        "## Sources",
        "",
        *_table(("model", "figures are from"), [(f"`{entry.name}`", entry.source) for entry in CATALOGUE]),
        "",
        "## `devices.yaml`",
        "",
        "A file of this name in the home says what a person knows of the devices of this machine. It completes what is",
        "found and makes no devices. The JSON Schema is in [`devices.schema.json`](devices.schema.json).",
        "",
        *_fields(definitions["DevicesSpec"]["properties"], "devices."),
        "",
        "### An entry of `devices`",
        "",
        *_fields(definitions["FoundSpec"]["properties"], "device."),
        "",
        "### `processor`",
        "",
        *_fields(definitions["ProcessorSpec"]["properties"], "processor."),
    ]
    return HEADER + "\n".join(lines) + "\n"


def policy_schema() -> str:
    """With the shapes of what the record leaves open."""
    schema = json.loads(_schema(recipe.PolicySpec, "A Poise policy file"))
    _, shapes = msgspec.json.schema_components((recipe.PreemptSpec, recipe.TriggersSpec), ref_template="#/$defs/{name}")
    schema["$defs"] |= shapes
    properties = schema["$defs"]["PolicySpec"]["properties"]
    properties["preempt"] |= {"anyOf": [{"$ref": "#/$defs/PreemptSpec"}, {"type": "null"}]}
    properties["triggers"] |= {"$ref": "#/$defs/TriggersSpec"}
    for name in ("order", "score"):
        weights = {"type": "object", "additionalProperties": {"type": "number"}}
        properties[name] = {"anyOf": [{"type": "string"}, weights]} if name == "order" else weights
    return json.dumps(_sorted_enums(schema), indent=2, ensure_ascii=False) + "\n"


def _schema(kind: type[msgspec.Struct], title: str) -> str:
    schema = msgspec.json.schema(kind)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = title
    return json.dumps(_sorted_enums(schema), indent=2, ensure_ascii=False) + "\n"


def fleet_file() -> str:
    """Every field of a fleet file, from the JSON Schema."""
    definitions = json.loads(fleet_schema())["$defs"]
    lines = [
        "# Fleet file",
        "",
        "Nodes of one machine, as they are declared: `poise up --fleet FILE` starts them, `poise nodes --fleet FILE`",
        "only shows them. The JSON Schema is in [`fleet.schema.json`](fleet.schema.json). Unknown fields are refused.",
        "",
        "A device whose model the catalogue knows needs nothing else; what is given takes the catalogue's place.",
        "",
        "## The file",
        "",
        *_fields(definitions["FleetSpec"]["properties"], "fleet."),
        "",
    ]
    for title, kind, prefix in (
        ("A node", "NodeSpec", "node"),
        ("`processor`", "ProcessorSpec", "processor"),
        ("An entry of `devices`", "DeviceSpec", "device"),
        ("An entry of `links`", "LinkSpec", "link"),
    ):
        lines += [f"## {title}", "", *_fields(definitions[kind]["properties"], f"{prefix}."), ""]
    return HEADER + "\n".join(lines)


def _sorted_enums(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: sorted(item) if key == "enum" else _sorted_enums(item) for key, item in value.items()}
    return [_sorted_enums(item) for item in value] if isinstance(value, list) else value


def job_file() -> str:
    """Every field of a file, from the JSON Schema."""
    definitions = json.loads(job_schema())["$defs"]
    task = definitions["TaskSpec"]["properties"]
    whole = {name: field for name, field in definitions["JobSpec"]["properties"].items() if name not in task}
    lines = [
        "# Job file",
        "",
        "What a file holds, what a [request to the API](api.md#submitting) holds under `spec`, and what the flags of",
        "`run` and `submit` say have one shape. The JSON Schema is in [`job.schema.json`](job.schema.json); an editor",
        "can check a file against it. Unknown fields are refused.",
        "",
        "Files are YAML: `.yaml` or `.yml`, UTF-8, at most 4 MiB. `true` and `false` are the only truth values (`yes`,",
        "`on` and `12:30` are texts), no key may be given twice, and tags are refused.",
        "",
        "## A whole job",
        "",
        *_fields(whole, ""),
        "",
        "A job also has the fields of a task. In a graph, those of its fields that a task can inherit are `priority`,",
        "`deadline` and `env`.",
        "",
        "## A task",
        "",
        *_fields(task, ""),
        "",
        "## `resources`",
        "",
        *_fields(definitions["ResourcesSpec"]["properties"], "resources."),
        "",
        "A device does work of a `precision` that it lacks in the first of these that it has; one that has none of",
        "them is not chosen. A device of which no rates are known is taken to have all.",
        "",
        *_table(
            ("precision", "else"), [(f"`{of}`", ", ".join(f"`{to}`" for to in tos)) for of, tos in FALLBACKS.items()]
        ),
        "",
        "## `retry`",
        "",
        *_fields(definitions["RetrySpec"]["properties"], "retry."),
        "",
        *itertools.chain.from_iterable(
            (f"## `{name}` as a mapping", "", *_fields(definitions[kind]["properties"], f"{prefix}."), "")
            for name, kind, prefix in (
                ("split", "SplitSpec", "split"),
                ("workers", "WorkersSpec", "workers"),
                ("artifacts.NAME", "ArtifactSpec", "artifact"),
                ("work", "WorkSpec", "work"),
                ("checkpoint", "CheckpointSpec", "checkpoint"),
            )
        ),
        "`expect` and `work` of a task with a `split` are those of all its items.",
        "",
        "## Quantities",
        "",
        *_table(
            ("quantity", "examples", "a bare number is"),
            [
                ("time", "`250ms`, `90s`, `30m`, `1h30m`, `2d`", "seconds"),
                ("memory", "`500MB` (10⁶), `12GiB` or `12Gi` (2³⁰)", "bytes"),
                ("CPU", "`4`, `0.5`, `500m`", "CPUs"),
                ("bandwidth", "`10Gbit`, `400Gbit/s`, `900GB/s`", "bits per second"),
                ("compute", "`2 PFLOP`, `312 TFLOPS`, `1e15`", "operations"),
            ],
        ),
        "",
        "GB and GiB differ: 80 GB are 74.5 GiB. Makers, the catalogue and most fleet files count the memory of devices",
        "in GB; messages, and the memory of nodes, are in GiB.",
        "",
        "## What a command finds in its environment",
        "",
        "What the job declares, a `PATH` (`/usr/local/bin:/usr/bin:/bin` unless declared), and:",
        "",
        *_table(
            ("variable", "meaning"),
            [
                ("`POISE_JOB`, `POISE_TASK`, `POISE_EPOCH`", "`j7`, `j7.train`, and the number of this attempt."),
                ("`POISE_RESULT`", "A path: what is written there (JSON, 64 KiB at most) is the task's result."),
                ("`POISE_RANK`, `POISE_WORLD_SIZE`", "In a gang. Also as `RANK`, `WORLD_SIZE`, with `LOCAL_RANK=0`."),
                ("`POISE_GANG_DIR`", "In a gang: a folder that its tasks share for this epoch."),
                ("`POISE_PART`, `POISE_PARTS`", "In a task that is cut by data."),
                ("`POISE_ITEMS_FROM`, `POISE_ITEMS_TO`", "In a task with a `split`: its items, the last one excluded."),
                ("`CUDA_VISIBLE_DEVICES` and its like", "Only the devices that the task was given; empty for none."),
            ],
        ),
    ]
    return HEADER + "\n".join(lines) + "\n"


def _fields(properties: dict[str, Any], prefix: str) -> list[str]:
    rows = []
    for name, field in properties.items():
        meaning = MEANING.get(prefix + name)
        if meaning is None:
            raise SystemExit(f"docs/generate.py: `MEANING` says nothing about the field `{prefix}{name}`")
        default = json.dumps(field["default"]) if field.get("default") not in (None, "", [], {}) else ""
        rows.append((f"`{name}`", _type(field), f"`{default}`" if default else "", meaning))
    return _table(("field", "type", "default", "meaning"), rows)


def _type(field: dict[str, Any]) -> str:
    """A JSON Schema type in words."""
    if "anyOf" in field or "oneOf" in field:
        words = [_type(one) for one in field.get("anyOf") or field["oneOf"] if one.get("type") != "null"]
        if {"text", "whole number", "number"} == set(words):
            return "quantity"
        return " or ".join(dict.fromkeys(words))
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"] if value)
    if "$ref" in field:
        return f"`{field['$ref'].rsplit('/', 1)[-1].removesuffix('Spec').lower()}` mapping"
    if field.get("type") == "array":
        return f"list of {_type(field['items'])}" if field.get("items") else "list"
    if field.get("type") == "object":
        return f"mapping to {_type(field['additionalProperties'])}" if field.get("additionalProperties") else "mapping"
    words_of = {"string": "text", "integer": "whole number", "number": "number", "boolean": "true or false"}
    return words_of.get(field.get("type", ""), "anything")


# --- the API ---------------------------------------------------------------------------------------------------------


def routes() -> str:
    """Every route of the OpenAPI document."""
    nobody = Mock()  # routes are only listed here, none is called
    guard: Any = make_app(nobody, Home(Path("/")), "", nobody, nobody)
    document = guard._rest.openapi_schema.to_schema()
    rows: list[tuple[str, ...]] = []
    parameters: list[tuple[str, ...]] = []
    for path, methods in document["paths"].items():
        for method, route in methods.items():
            answer = next(iter(route["responses"]))
            rows.append((f"`{method.upper()} {path}`", route["summary"], answer, "no" if path in PUBLIC else "yes"))
            for one in route.get("parameters", []):
                schema = one["schema"]
                default = json.dumps(schema["default"]) if "default" in schema else ""
                parameters.append((f"`{method.upper()} {path}`", f"`{one['name']}`", one["in"], _type(schema), default))
    lines = [
        "# API",
        "",
        "HTTP on the Unix socket `poise.sock` in the home, and on a loopback port that `control.json` names. Bodies",
        "are JSON of at most 4 MiB. The OpenAPI document is at `/v1/schema/openapi.json`.",
        "",
        "Every request carries the token of the home, except where the table says *no*:",
        "",
        "```sh",
        'curl --unix-socket ~/.poise/poise.sock -H "Authorization: Bearer $(cat ~/.poise/token)" http://poise/v1/status',
        "```",
        "",
        'A request with a foreign `Host` or `Origin` is refused. [Errors](errors.md) are `{"error": {…}}`.',
        "",
        "## Submitting",
        "",
        "The body holds the job under `spec`, as [a file would](job-file.md), here in JSON. `POST /v1/plan` takes the",
        "same.",
        "",
        "```sh",
        "curl --unix-socket ~/.poise/poise.sock \\",
        '  -H "Authorization: Bearer $(cat ~/.poise/token)" -H "Content-Type: application/json" \\',
        """  -d '{"spec": {"name": "hello", "run": ["echo", "hello"]}}' http://poise/v1/jobs""",
        "```",
        "",
        'The answer is `{"job":"j1","note":""}` once the job is durable. Beside `spec`, `user` is a name to show, and',
        "`key` makes it harmless to send the same again: the second answer names the first job.",
        "",
        "## Routes",
        "",
        *_table(("route", "does", "answers", "token"), rows),
        "",
        "## Parameters",
        "",
        *_table(("route", "parameter", "in", "type", "default"), parameters),
        "",
        "`{name}` is a job's id or name; where a job is looked at and not changed, also `JOB.TASK`.",
        "",
        "## Units",
        "",
        "Numbers in answers, in `--json` and in the log are plain, mostly whole, and in the same unit everywhere:",
        "",
        *_table(
            ("what", "unit", "fields"),
            [
                ("time of day", "seconds since 1970; 0: not yet", "`submitted`, `started`, `ended`, `at` of a `story`"),
                (
                    "duration",
                    "nanoseconds",
                    "`elapsed`, `wait`, `run`, `cpu` of a task, `expected`, `slack`, `remaining`, `latency`; `start`, "
                    "`left` and `prediction.run` of an explanation, from now",
                ),
                ("moment in the log", "nanoseconds since the log was born", "`at` of an event"),
                ("CPUs", "thousandths of a CPU", "`cpu`, `cpu_used` of a node, `prediction.cpu`"),
                (
                    "memory",
                    "bytes",
                    "`memory`, `memory_used`, `peak`, `limit`, `gpu_memory`, `device_peak`, `prediction.memory`",
                ),
                ("network and links", "bits per second", "`network`, `network_used`, `bandwidth` of a link"),
                ("memory bandwidth", "bytes per second", "`bandwidth` of a device or a node"),
                ("compute", "operations per second, and per joule", "`rates`; `per_watt`"),
                ("power", "milliwatts", "`power`"),
                ("price", "millionths of the currency, for an hour", "`price`"),
                (
                    "share",
                    "thousandths",
                    "`load`, `failures`, `share`, `device` of an ending, `prediction.device`; but `size` of a "
                    "suggestion is a fraction",
                ),
            ],
        ),
        "",
        "## Streams",
        "",
        "* `POST /v1/jobs` with `Content-Type: application/x-ndjson` takes one submission a line and answers each, in",
        "  order, as soon as it is durable, while lines still come in.",
        "* `GET /v1/events` answers with server-sent events. Each has the revision as its id, so a client that was cut",
        "  off goes on with `Last-Event-ID`.",
        "* `GET /v1/jobs/{name}/logs` answers with one JSON record a line: pieces of output (base64 in `data`), then",
        "  an end.",
        "* `/v1/channel` is the WebSocket of agents: msgpack frames, not meant for people, in no OpenAPI document.",
    ]
    return HEADER + "\n".join(lines) + "\n"


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    return [
        f"| {' | '.join(head)} |",
        f"|{'|'.join(' --- ' for _ in head)}|",
        *(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows),
    ]


# --- numbers ---------------------------------------------------------------------------------------------------------


def write_numbers() -> int:
    """The figures of the last `make bench`, as a table between the two marks of docs/numbers.md."""
    if not RESULTS.exists():
        print(f"there is no {RESULTS.relative_to(ROOT)}; `make bench` writes it", file=sys.stderr)
        return 1
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    about = [f"* {key}: {value}" for key, value in dict(results).items() if isinstance(value, str)]
    about.append(f"* date: {datetime.fromtimestamp(RESULTS.stat().st_mtime, UTC):%Y-%m-%d}")
    rows = [_figure(figure) for figure in _figures(results)]
    text = NUMBERS.read_text(encoding="utf-8")
    before, after = text.split(BEGIN, 1)[0], text.split(END, 1)[1]
    lines = [*about, "", *_table(("figure", "median [min-max]", "target", "met"), rows)]
    NUMBERS.write_text(f"{before}{BEGIN}\n" + "\n".join(lines).strip() + f"\n{END}{after}", encoding="utf-8")
    print(f"{len(rows)} figures written to {NUMBERS.relative_to(ROOT)}")
    return 0


def _figures(value: Any) -> Iterator[dict[str, Any]]:
    """Every record with a name and values, however deep."""
    if isinstance(value, dict) and "name" in value and "values" in value:
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _figures(item)


def _figure(figure: dict[str, Any]) -> tuple[str, ...]:
    values, unit, limit = figure["values"], figure["unit"], figure.get("limit")
    measured = figure.get("note") or "pending"
    if values:
        measured = f"{_number(figure['median'])} {unit} [{_number(min(values))}-{_number(max(values))}]"
    target = f"{'≥' if figure.get('larger') else '≤'} {_number(limit)} {unit}" if limit is not None else ""
    met = {True: "yes", False: "**no**", None: ""}[figure.get("met")]
    return figure["name"], measured, target, met


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    sys.exit(main())
