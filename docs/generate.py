"""Writes docs/reference/ from the code, so that it cannot drift from it.

    python docs/generate.py            write every page
    python docs/generate.py --check    say which pages are out of date, and end with 1 if any is
    python docs/generate.py --numbers  copy the measured figures of .bench/results.json into the pages that show them

Commands come from click, errors from `errors.CODES` and its tree, fields from the JSON Schemas of the files, routes
from the OpenAPI document.
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
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import click
from picture_of_imports import picture
from prometheus_client import CollectorRegistry

import poise as poise_package
from poise import errors
from poise.cli.complete import FLAGS
from poise.cli.group import poise
from poise.cli.main import ALIASES, COMMANDS, GIVES_CHILD_CODE, GROUPS, OWN_FAILURE
from poise.config import Home
from poise.control.api import make_app
from poise.control.guard import PUBLIC
from poise.control.metrics import METRICS, SHOWN_MODELS, SHOWN_NODES, SHOWN_TENANTS
from poise.control.openapi import document
from poise.drivers.schemas import FILES, schema_of
from poise.model import jobs
from poise.model.catalogue import CATALOGUE, TERA, device_of, per_watt
from poise.model.document import words_of
from poise.model.fleetfile import PRECISIONS
from poise.model.job_fields import flagged
from poise.model.reports.jobs import STATUSES
from poise.policy.feasible import FALLBACKS
from poise.policy.suites import POLICIES
from poise_serve.keys import Usage
from poise_serve.metrics import Metrics as FrontMetrics
from poise_serve.service_metrics import Registry

KINDS = {
    "JOB": "job",
    "NODE": "node",
    "TENANT": "tenant",
    "SCHEDULE": "schedule",
    "SERVICE": "service",
    "FILE": "file",
    "--] COMMAND": "command",
}
"""What is to be completed, by how a metavar begins."""

WORDS = {name: [*POLICIES, ":files"] for name in ("--policy", "policy")} | {
    flag.name: words for _, of, flag in flagged() if (words := list(words_of(of.type)))
}
"""Words that a flag takes though it is open to others, or checks them elsewhere."""

TRAINING = {
    "poise_train": ("Keep", "Restored", "load", "PhaseRules", "Pace"),
    "poise_train.memory": ("Shares",),
    "poise_train.compression": ("Half", "PowerSGD", "TopK"),
    "poise_train.local": ("LocalSGD",),
    "poise_train.advise": ("Adviser",),
    "poise_train.asynchronous": ("Asynchronous",),
    "poise_train.pipeline": ("Pipeline",),
    "poise_train.split": ("split", "whole"),
    "poise_train.hugging_face": ("PoiseCallback", "last_checkpoint"),
    "poise_train.lightning": ("PoiseCallback",),
}
"""What a script that trains may use beside a session, by the module that it is imported from."""

MEANT = {"Asynchronous": ("step",), "Pipeline": ("parameters", "step", "answer", "told", "save", "restore")}
"""Those of their methods that a script calls."""

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "docs" / "reference"
RESULTS = ROOT / ".bench" / "results.json"
NUMBERS = ROOT / "docs" / "numbers.md"
BENCH = ROOT / "docs" / "numbers" / "bench.md"
FAULTS = ROOT / "docs" / "explanation" / "fault-matrix.md"
FAILURES = ROOT / "docs" / "reference" / "failures.md"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
HEADER = "<!-- Made by docs/generate.py. Change the code, then run `make docs`. -->\n\n"


def main() -> int:
    parser = argparse.ArgumentParser(description="write docs/reference/ from the code")
    parser.add_argument("--check", action="store_true", help="write nothing; end with 1 if a page is out of date")
    parser.add_argument("--numbers", action="store_true", help="copy .bench/results.json into the pages")
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
        "fleet-file.md": fleet_file,
        "devices.md": devices,
        "api.md": routes,
        "metrics.md": metrics,
    }
    makers |= {f"{kind}.schema.json": partial(file_schema, kind) for kind in FILES}
    for name, make in makers.items():
        yield REFERENCE / name, make()
    yield ROOT / "src" / "poise" / "cli" / FLAGS.name, flags()
    yield ROOT / "docs" / "images" / "architecture.svg", picture()


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
        "Every command uses the home named by `POISE_HOME`, or `~/.poise`. Data goes to stdout, messages to stderr.",
        "With `--json` a command prints exactly one JSON value, in [these units](api.md#units). See also",
        "[exit codes](exit-codes.md).",
        "",
    ]
    for title, names in (*GROUPS.items(), ("Other names", tuple(ALIASES))):
        does = [(f"[`poise {name}`](#poise-{name})", COMMANDS[name][1]) for name in names]
        lines += ["", f"**{title}**", "", *_table(("command", "does"), does)]
    root = click.Context(poise, info_name="poise")
    for name in (name for names in (*GROUPS.values(), ALIASES) for name in names):
        command = cast(click.Command, poise.get_command(root, name))
        lines += _command(command, click.Context(command, info_name=name, parent=root), "##")
    return HEADER + "\n".join(lines) + "\n"


def _command(command: click.Command, context: click.Context, heading: str) -> Iterator[str]:
    """A command, or a group of them with each of its own."""
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    yield from ("", f"{heading} {context.command_path}", "", "```", usage, "```", "")
    yield " ".join((command.help or "").split())
    if isinstance(command, click.Group):
        for name, own in command.commands.items():
            yield from _command(own, click.Context(own, info_name=name, parent=context), f"{heading}#")
        return
    options = [option for option in command.params if isinstance(option, click.Option)]
    records = [record for option in options if (record := option.get_help_record(context))]
    rows = [(f"`{left}`", " ".join(right.split())) for left, right in records]
    yield from ("", *_table(("option", "meaning"), rows))


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
        "An error has a code that does not change, and one sentence. If they help, it also has the place (`where`),",
        "the expected and the actual value, and a hint that can be typed. With `--json` it is",
        '`{"error": {…}}` on stdout; the API answers with the same record. All errors of a file are reported at once:',
        "the first error holds the `others`. On the command line `at` is the place in the file (`train.yaml:3:7`: line",
        "and column).",
        "",
        "`E1…` concerns the request: exit code 1. `E2…` concerns Poise or its machine: exit code 2 (`E204`: 1).",
        "",
        *_table(("code", "meaning"), [(f"`{code}`", text) for code, text in errors.CODES.items()]),
        "",
        "## The tree",
        "",
        *_table(
            ("exception", "exit code", "HTTP status", "default code"),
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
        made = _made(thing, name) if name == "Session" else []
        lines += [f"## `poise.{name}`", "", *made, *_described(thing, name)]
        own = vars(thing) if inspect.isclass(thing) and not issubclass(thing, Exception) else {}
        for method, function in own.items():
            if method.startswith("_") or not (inspect.isfunction(function) or isinstance(function, property)):
                continue
            lines += [f"### `{name}.{method}`", "", *_described(function, method)]
    beside = "Names beside [`poise.Session`](#poisesession); import each from the module in its heading."
    lines += ["## Training", "", beside, ""]
    for module, names in TRAINING.items():
        for name in names:
            thing = getattr(import_module(module), name)
            lines += [f"### `{module}.{name}`", "", "```python", f"from {module} import {name}", "```", ""]
            lines += [*_made(thing, name), *_described(thing, name)]
            for method in MEANT.get(name, ()):
                lines += [f"#### `{name}.{method}`", "", *_described(getattr(thing, method), method)]
    return HEADER + "\n".join(lines).rstrip() + "\n"


def _made(thing: Any, name: str) -> list[str]:
    """With what a class is called, where that is its own."""
    if not inspect.isclass(thing) or issubclass(thing, tuple) or not inspect.signature(thing).parameters:
        return []
    shown = _shown(inspect.signature(thing)).removesuffix(" -> None")
    return ["```python", f"{name}{shown}", "```", ""]


def _shown(signature: inspect.Signature) -> str:
    shown = str(signature).replace("self, ", "").replace("(self)", "()").replace("~", "")
    return re.sub(
        r"(collections\.abc|typing|pathlib|torch(\.[a-z_0-9]+)*|numpy|poise(_[a-z]+)?\.[a-z_.]+)\.(?=[A-Z])", "", shown
    )


def _described(thing: Any, name: str) -> list[str]:
    """A signature, where it says something, and a docstring."""
    lines = []
    if inspect.isfunction(thing):
        lines += ["```python", f"{name}{_shown(inspect.signature(thing))}", "```", ""]
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
                    "The request is invalid or cannot be fulfilled (`E1…`); also usage errors.",
                ),
                (str(errors.Fault.exit_code), "Poise or its machine failed (`E2…`)."),
                ("130", "Interrupted with Ctrl-C."),
            ],
        ),
        "",
        "A reader may close a pipe: `poise events | head` exits with 0.",
        "",
        "While Poise is up with other nodes, `poise up --fleet` or `--no-fleet` ends with 1 (`E121`), and changes",
        "nothing. If Poise is up with these nodes already, the command ends with 0.",
        "",
        "`poise doctor` ends with 1 if it finds something that does not work or is open to others (`fail`), else",
        "with 0.",
        "",
        "`poise compare` ends with 1 or 2 if the policy of a trial failed; the others are reported all the",
        "same.",
        "",
        f"{own} end with the command's own code instead:",
        "",
        *_table(
            ("code", "meaning"),
            [
                ("0", "Every task is done."),
                ("1 … 255", "The code of the first task that failed; of `wait JOB.TASK`, of that task."),
                ("128 + N", "A signal N ended it: 137 is SIGKILL, 143 is SIGTERM."),
                ("137", "Also: it exceeded its memory limit. `poise show` distinguishes the two."),
                (
                    "126, 127",
                    "Also: the command could not be executed, or was not found. `poise show` prints which program.",
                ),
                ("124", "It reached its `time-limit`, or has hung: it was silent for longer than its `hang`."),
                ("130", "The job or the task was cancelled, or the command was interrupted with Ctrl-C."),
                (
                    str(OWN_FAILURE),
                    "Poise itself failed, was used wrongly, could not run or keep the task, or `--timeout` has passed. "
                    "Also: the job was skipped, because a job that it needs failed or was cancelled.",
                ),
            ],
        ),
        "",
        "## What a task is",
        "",
        "`poise show` and `--json` name the status of each task:",
        "",
        *_table(("status", "meaning"), [(f"`{name}`", text) for name, text in STATUSES.items()]),
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


def file_schema(kind: str) -> str:
    return json.dumps(schema_of(kind), indent=2, ensure_ascii=False) + "\n"


def devices() -> str:
    """The catalogue, and every field of `devices.yaml`."""
    schema = schema_of("devices")
    found = {name: field for name, field in schema["$defs"]["FoundSpec"]["properties"].items() if name != "count"}
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
                *(f"{entry.rates[name] / TERA:g}" if name in entry.rates else "" for name in PRECISIONS),
                f"{entry.power // 1000} W" if entry.power else "",
                f"{watt / TERA:.2f}" if watt else "",
            )
        )
    lines = [
        "# Devices",
        "",
        "The figures of a device have four sources. For each figure the first source in this list counts: `declared`",
        "by a person, `measured` by `poise bench-devices`, reported by the `driver`, or listed in the `catalogue`.",
        "`poise nodes --json` names the source of each figure under `sources`.",
        "",
        "## The catalogue",
        "",
        "Peak rates in TFLOPS (int8: TOPS), matrix units included, without sparsity, with accumulation in fp32 where a",
        "precision has two rates; the last column is TFLOPS per watt in fp16. Figures without a maker's document are "
        "empty.",
        "No maker publishes the operators of a device: it counts as supporting all, unless you declare them.",
        "",
        *_table(
            ("model", "kind", "backend", "memory", "bandwidth", *PRECISIONS, "power", "per watt"),
            rows,
        ),
        "",
        "Poise recognizes a model in the driver's name (`NVIDIA A100-SXM4-80GB`). A device with another",
        "amount of memory than its model counts as a part of one (a slice, or one die of two), and gets no figures.",
        "",
        "## Sources",
        "",
        *_table(("model", "figures are from"), [(f"`{entry.name}`", entry.source) for entry in CATALOGUE]),
        "",
        "## `devices.yaml`",
        "",
        "A file of this name in the home declares facts about the devices of this machine. It completes the detected",
        "figures and adds no devices. The JSON Schema is in [`devices.schema.json`](devices.schema.json).",
        "",
        *_fields(schema["properties"]),
        "",
        "### An entry of `devices`",
        "",
        *_fields(found),
        "",
        "### `processor`",
        "",
        *_fields(schema["$defs"]["ProcessorSpec"]["properties"]),
    ]
    return HEADER + "\n".join(lines) + "\n"


def fleet_file() -> str:
    """Every field of a fleet file, from the JSON Schema."""
    schema = schema_of("fleet")
    definitions = schema["$defs"]
    lines = [
        "# Fleet file",
        "",
        "Declared nodes of one machine: `poise up --fleet FILE` starts them, `poise nodes --fleet FILE`",
        "only shows them. The JSON Schema is in [`fleet.schema.json`](fleet.schema.json). Unknown fields are refused.",
        "",
        "A device with a model of the catalogue needs no other fields; values in the file override the catalogue.",
        "",
        "## The file",
        "",
        *_fields(schema["properties"]),
        "",
    ]
    for title, kind in (
        ("A node", "NodeSpec"),
        ("`processor`", "ProcessorSpec"),
        ("An entry of `devices`", "DeviceSpec"),
        ("An entry of `links`", "LinkSpec"),
    ):
        lines += [f"## {title}", "", *_fields(definitions[kind]["properties"]), ""]
    return HEADER + "\n".join(lines)


def job_file() -> str:
    """Every field of a file, from the JSON Schema."""
    schema = schema_of("job")
    definitions = schema["$defs"]
    task = definitions["TaskSpec"]["properties"]
    whole = {name: field for name, field in schema["properties"].items() if name not in task}
    lines = [
        "# Job file",
        "",
        "A file, the value of `spec` in a [request to the API](api.md#submitting), and the flags of `run` and `submit`",
        "have the same structure. The JSON Schema is in [`job.schema.json`](job.schema.json); an editor",
        "can check a file against it. Unknown fields are refused.",
        "",
        "Files are YAML: `.yaml` or `.yml`, UTF-8, at most 4 MiB. `true` and `false` are the only booleans (`yes`,",
        "`on` and `12:30` are strings), keys must be unique, and tags are refused.",
        "",
        "## A whole job",
        "",
        *_fields(whole),
        "",
        "A job also has the fields of a task. In a graph, those of its fields that a task can inherit are `priority`,",
        "`deadline` and `env`.",
        "",
        "## A task",
        "",
        *_fields(task),
        "",
        "## `resources`",
        "",
        *_fields(definitions["ResourcesSpec"]["properties"]),
        "",
        "A device without the `precision` of a task uses the first of these that it has; one that has none of",
        "them is not chosen. A device of which no rates are known is taken to have all.",
        "",
        *_table(
            ("precision", "else"), [(f"`{of}`", ", ".join(f"`{to}`" for to in tos)) for of, tos in FALLBACKS.items()]
        ),
        "",
        "## `retry`",
        "",
        *_fields(definitions["RetrySpec"]["properties"]),
        "",
        *itertools.chain.from_iterable(
            (f"## `{name}` as a mapping", "", *_fields(definitions[kind]["properties"]), "")
            for name, kind in (
                ("split", "SplitSpec"),
                ("workers", "WorkersSpec"),
                ("artifacts.NAME", "ArtifactSpec"),
                ("work", "WorkSpec"),
                ("checkpoint", "CheckpointSpec"),
                ("deadline", "DeadlineSpec"),
                ("phases", "PhaseSpec"),
            )
        ),
        "## `sweep`",
        "",
        *_table(
            ("form", "tries"),
            [
                ("`{lr: [0.1, 0.01], seed: 1..5}`", "Every `lr` with every `seed`: ten tasks."),
                ("`{seed: 0..99:2}`", "0, 2, 4 … 98. Both ends belong to a range."),
                ("`{zip: {lr: [0.1, 0.01], steps: [100, 1000]}}`", "The first with the first, and so on: two."),
                ("`[{lr: 0.1, seed: 1}, {lr: 0.01, seed: 7}]`", "These, as listed."),
            ],
        ),
        "",
        "In a `run` that is a list, `${lr}` or `{lr}` is replaced by the value; in a string it is a variable that the",
        "shell looks up. A name has lowercase letters, digits and `_`.",
        "",
        "`expect` and `work` of a task with a `split` are those of all its items.",
        "",
        "## Quantities",
        "",
        *_table(
            ("quantity", "examples", "a bare number is"),
            [
                ("time", "`250ms`, `90s`, `30m`, `1h30m`, `2d`", "seconds"),
                ("memory", "`500MB` (10⁶), `12GiB`, `12Gi` or `12G` (2³⁰)", "bytes; less than 1 MiB is refused"),
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
        "The variables that the job declares, a `PATH` (`/usr/local/bin:/usr/bin:/bin` by default), and:",
        "",
        *_table(
            ("variable", "meaning"),
            [
                ("`POISE_JOB`, `POISE_TASK`, `POISE_EPOCH`", "`j7`, `j7.train`, and the number of this attempt."),
                (
                    "`POISE_UNIT`",
                    "The task or gang: equal in all its attempts and members, and unique among the jobs of all homes.",
                ),
                ("`POISE_RESULT`", "A path: the file written there (JSON, 64 KiB at most) is the task's result."),
                ("`POISE_MEMORY`", "With requested memory: its limit in bytes."),
                (
                    "`POISE_GPU_SHARE`, `POISE_GPU_MEMORY`",
                    "With a share of its devices: thousandths of their compute, and bytes of their memory.",
                ),
                ("`POISE_PROGRESS`", "In a task with a `hang`: a path. Touching it reports progress."),
                ("`POISE_RANK`, `POISE_WORLD_SIZE`", "In a gang."),
                (
                    "`MASTER_ADDR`, `MASTER_PORT`, `RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `LOCAL_WORLD_SIZE`",
                    "In a gang, as `torchrun` sets them, with `GROUP_…` and `ROLE_…`. `LOCAL_RANK` is 0: a task sees "
                    "only its own devices, numbered from 0. The first two stay as the job declares them.",
                ),
                ("`POISE_GANG_DIR`", "In a gang: a folder that its tasks share for this epoch."),
                (
                    "`POISE_CHECKPOINTS`",
                    "A folder for checkpoints: by default the job's own, which is removed a day after the job ends.",
                ),
                ("`POISE_REPORT`", "A file in which [training](../how-to/follow-training.md) may report its progress."),
                ("`POISE_GANG_ADDRESS`", "In a gang that may be on several machines: this one's address."),
                ("`POISE_PART`, `POISE_PARTS`", "In a task that is cut by data."),
                ("`POISE_SWEEP_LR` and others", "In a task with a `sweep`: its value of each name."),
                ("`POISE_ITEMS_FROM`, `POISE_ITEMS_TO`", "In a task with a `split`: its items, the last one excluded."),
                ("`CUDA_VISIBLE_DEVICES` and others", "Only the assigned devices of the task; empty for none."),
            ],
        ),
    ]
    return HEADER + "\n".join(lines) + "\n"


def _fields(properties: dict[str, Any]) -> list[str]:
    rows = []
    for name, field in properties.items():
        default = json.dumps(field["default"]) if field.get("default") not in (None, "", [], {}) else ""
        rows.append((f"`{name}`", _type(field), f"`{default}`" if default else "", field["description"]))
    return _table(("field", "type", "default", "meaning"), rows)


def _type(field: dict[str, Any]) -> str:
    """A JSON Schema type in words."""
    if "const" in field:
        return f"`{field['const']}`"
    if isinstance(field.get("type"), list):
        return "quantity" if "pattern" in field else "text or number"
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
        inner = field.get("additionalProperties") or {}
        return f"mapping to {_type(inner)}" if inner and "anyOf" not in inner else "mapping"
    words_of = {"string": "text", "integer": "whole number", "number": "number", "boolean": "true or false"}
    return words_of.get(field.get("type", ""), "anything")


# --- the API ---------------------------------------------------------------------------------------------------------


def routes() -> str:
    """Every route of the OpenAPI document."""
    nobody = Mock()  # routes are only listed here, none is called
    guard: Any = make_app(nobody, Home(Path("/")), "", nobody, nobody)
    roles = {(route.method, route.path): route.role for route in guard._rest}
    rows: list[tuple[str, ...]] = []
    parameters: list[tuple[str, ...]] = []
    for path, methods in document(guard._rest)["paths"].items():
        for method, route in methods.items():
            answer = next(iter(route["responses"]))
            needed = roles[method.upper(), path]
            role = needed.name.lower() if needed is not None else "no token" if path in PUBLIC else "nobody"
            rows.append((f"`{method.upper()} {path}`", route["summary"], answer, role))
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
        "Every request needs a token, that of the home or [another one](../how-to/share-a-machine.md), except",
        "where the table says *no token*. The answer has the data of the token's",
        "tenant; operators and admins get the data of all tenants.",
        "",
        "```sh",
        'curl --unix-socket ~/.poise/poise.sock -H "Authorization: Bearer $(cat ~/.poise/token)" http://poise/v1/status',
        "```",
        "",
        'A request with a foreign `Host` or `Origin` is refused. [Errors](errors.md) are `{"error": {…}}`.',
        "",
        "## Submitting",
        "",
        "The body holds the job under `spec`, with the fields of a [job file](job-file.md), in JSON. `POST /v1/plan`",
        "takes the same.",
        "",
        "```sh",
        "curl --unix-socket ~/.poise/poise.sock \\",
        '  -H "Authorization: Bearer $(cat ~/.poise/token)" -H "Content-Type: application/json" \\',
        """  -d '{"spec": {"name": "hello", "run": ["echo", "hello"]}}' http://poise/v1/jobs""",
        "```",
        "",
        'The answer is `{"job":"j1","note":""}` once the job is durable. Beside `spec`, `user` is a display',
        "name, and `key` makes it safe to repeat the request: the second answer names the first job.",
        "",
        "## Routes",
        "",
        *_table(("route", "does", "answers", "role"), rows),
        "",
        "## Parameters",
        "",
        *_table(("route", "parameter", "in", "type", "default"), parameters),
        "",
        "`{name}` is a job's id or name; in requests that only read, also `JOB.TASK`.",
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
                    "`left` and `prediction.run` of an explanation, from now; null: unknown",
                ),
                ("time in the log", "nanoseconds since the creation of the log", "`at` of an event"),
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
        "* `POST /v1/jobs` with `Content-Type: application/x-ndjson` takes one submission per line and answers each,",
        "  in order, as soon as it is durable, while more lines arrive.",
        "* `GET /v1/events` answers with server-sent events. Each has the revision as its id, so a client that was cut",
        "  off continues with `Last-Event-ID`.",
        "* `GET /v1/jobs/{name}/logs` answers with one JSON record a line: pieces of output (base64 in `data`), then",
        "  an end.",
        "* `/v1/channel` is the WebSocket of agents: msgpack frames, which are not in the OpenAPI document.",
    ]
    return HEADER + "\n".join(lines) + "\n"


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    return [
        f"| {' | '.join(head)} |",
        f"|{'|'.join(' --- ' for _ in head)}|",
        *(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows),
    ]


# --- metrics ---------------------------------------------------------------------------------------------------------


def metrics() -> str:
    """Every metric of the control plane, from its declaration, and of the gateway, from its registry."""
    lines = [
        "# Metrics",
        "",
        "The control plane and the gateway export these metrics at `/metrics`, in the text format of Prometheus.",
        "[Alerts in ten minutes with Prometheus](../how-to/alert-with-prometheus.md) shows how to scrape them.",
        "",
        "Units are seconds, bytes, joules, watts and ratios. Both also export `process_*` of their process.",
        "",
        "## Control plane",
        "",
        "Metrics for *all* are shown to every token with the role viewer or higher, metrics for *operators* only to",
        "operators and admins. Viewers and submitters see the tenant and the pending units of their own tenant only.",
        "A standby exports only the metrics that are marked so.",
        "",
        "No job, task or user is a label. The number of series has a limit, below 3,000 on any fleet. The",
        f"{SHOWN_NODES} nodes with the most CPU in use, the {SHOWN_TENANTS} tenants with the most units and the",
        f"{SHOWN_MODELS} most frequent device models have series of their own. Other tenants and models are `other`.",
        "",
    ]
    shown = {"standby": "all, standby", "tenant": "all", "operator": "operators"}
    rows = [
        (f"`{of.name}`", of.kind, ", ".join(f"`{label}`" for label in of.labels), of.about, shown[of.seen])
        for of in METRICS
    ]
    lines += _table(("metric", "type", "labels", "meaning", "shown to"), rows)
    lines += [
        "",
        "## Gateway",
        "",
        "Names are those of Ray Serve, vLLM's router, Triton and Flagger where these exist.",
        "",
    ]
    registry = CollectorRegistry()
    for make in (Registry, FrontMetrics, Usage):
        make(registry)
    lines += _table(("metric", "type", "labels", "meaning"), sorted(_registered(registry)))
    return HEADER + "\n".join(lines) + "\n"


def _registered(registry: CollectorRegistry) -> Iterator[tuple[str, ...]]:
    """The metrics of a registry; those with labels have no series yet, so they are asked themselves."""
    for collector in registry._collector_to_names:
        for family in collector.describe():
            names = getattr(family, "_labelnames", getattr(collector, "_labelnames", ()))
            labels = ", ".join(f"`{label}`" for label in names)
            name = f"{family.name}_total" if family.type == "counter" else family.name
            yield f"`{name}`", family.type, labels, family.documentation


# --- numbers ---------------------------------------------------------------------------------------------------------


def write_numbers() -> int:
    """Copy the figures of the last `make bench` between the two marks of the pages that show them."""
    if not RESULTS.exists():
        print(f"there is no {RESULTS.relative_to(ROOT)}; `make bench` writes it", file=sys.stderr)
        return 1
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    about = [f"* {key}: {value}" for key, value in dict(results).items() if isinstance(value, str)]
    about.append(f"* date: {datetime.fromtimestamp(RESULTS.stat().st_mtime, UTC):%Y-%m-%d}")
    head = ("figure", "median [min-max]", "target", "met")
    rows = [_figure(figure) for figure in _figures(results)]
    _put(BENCH, [*about, "", *_table(head, rows)])
    faults = list(_figures(results.get("faults", [])))
    _put(NUMBERS, _table(head, with_targets(rows, [_figure(figure) for figure in faults])))
    _put(FAULTS, _faults(faults))
    _put(FAILURES, _how_long(faults))
    return 0


def with_targets(rows: Sequence[tuple[str, ...]], faults: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """The rows that have a target; those of faults as one, with the missed ones by name."""
    aimed = [row for row in rows if row[2] and row not in faults]
    tried = [row for row in faults if row[2]]
    missed = [row for row in tried if row[3] != "yes"]
    together = ("faults done to a live Poise, and kills of its control plane: figures",)
    return [
        *aimed,
        (*together, f"{len(tried) - len(missed)} of {len(tried)}", "all", "**no**" if missed else "yes"),
        *missed,
    ]


def _put(page: Path, lines: Sequence[str]) -> None:
    """Between the two marks of a page."""
    text = page.read_text(encoding="utf-8")
    before, after = text.split(BEGIN, 1)[0], text.split(END, 1)[1]
    page.write_text(f"{before}{BEGIN}\n" + "\n".join(lines).strip() + f"\n{END}{after}", encoding="utf-8")
    print(f"{len(lines)} lines of figures written to {page.relative_to(ROOT)}")


def _faults(figures: Sequence[dict[str, Any]]) -> list[str]:
    """One line for each fault that was done, then a line for each figure of Poise and the peers side by side."""
    kinds = ("noticed", "recovered", "promises broken")
    done: dict[str, dict[str, str]] = {}
    beside = []
    for figure in figures:
        fault, _, kind = figure["name"].removeprefix("fault ").rpartition(", ")
        if kind in kinds:
            done.setdefault(fault, {"measured by": ""})[kind] = _fault_cell(figure)
            if kind != "promises broken":
                done[fault]["measured by"] = figure.get("note", "")
        elif figure["name"].startswith("fault "):  # absent
            done[figure["name"].removeprefix("fault ")] = {"noticed": figure.get("note", "")}
        else:
            beside.append(_figure(figure)[:2])
    rows = [(fault, *(cells.get(head, "") for head in (*kinds, "measured by"))) for fault, cells in done.items()]
    lines = _table(("fault", "noticed", "recovered", "promises", "measured by"), rows) if rows else []
    return [*lines, "", *_table(("under the same kill", "median [min-max]"), beside)] if beside else lines


def _how_long(figures: Sequence[dict[str, Any]]) -> list[str]:
    """The medians alone, of each fault that was timed."""
    found: dict[str, dict[str, str]] = {}
    for figure in figures:
        fault, _, kind = figure["name"].rpartition(", ")
        if fault.startswith("fault ") and kind in ("noticed", "recovered") and figure["values"]:
            found.setdefault(fault.removeprefix("fault "), {})[kind] = f"{_number(figure['median'])} {figure['unit']}"
    rows = [(fault, times.get("noticed", ""), times.get("recovered", "")) for fault, times in found.items()]
    return _table(("fault", "noticed", "recovered"), rows) if rows else []


def _fault_cell(figure: dict[str, Any]) -> str:
    """The figure and, where it has a target, whether it is met; of promises, which were kept."""
    _, measured, target, met = _figure(figure)
    if not figure["unit"]:
        return figure["note"] if figure["met"] else f"**{_number(figure['median'])} broken**: {figure['note']}"
    return f"{measured}; {target}: {met}" if target else measured


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
