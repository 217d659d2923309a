"""Directives: lines at the head of a script that declare its requirements.

    #!/bin/bash
    #POISE gpu=1 memory=8GiB
    #POISE name=train sweep="{lr: [0.1, 0.01]}"
    python train.py --lr "$POISE_SWEEP_LR"

A directive is a flag of `poise submit`, or a field of the job file in YAML, written `name=value`. A line may have
several, quoted as in a shell. A directive after the first line of code is refused. A `#SBATCH` option counts unless a
directive or a flag sets the same field. Options without a counterpart are listed on stderr.
"""

import re
import shlex
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from poise.cli.asking import FLAGS, asked, merged
from poise.cli.render import say
from poise.cli.slurm import Read, of_slurm, tasks_of_slurm, variables_of_slurm
from poise.drivers.textfile import read_text
from poise.drivers.yamlfile import parse_yaml
from poise.errors import ErrorRecord, Place, SpecError, placed, together
from poise.model.document import ANOTHER_NAME, above, near
from poise.model.fields import declared
from poise.model.job_fields import JobSpec, ResourcesSpec
from poise.model.spec import compile_spec

_OURS = re.compile(r"#POISE(?:\s+(.*))?")
_NEARLY = re.compile(r"\s*#+\s*poise[: ]\s*-*[a-z][a-z_-]*=", re.IGNORECASE)
_NEARLY_BEGINS = re.compile(r"\s*#+\s*poise[: ]\s*-*", re.IGNORECASE)
_NOT_HERE = ("kind", "tasks", "needs", "run", "artifacts", "folder")
"""Job fields that a script cannot set: the script itself is the command, and runs in the folder of its submission."""

_RESOURCES = tuple(declared(ResourcesSpec))
_FIELDS = tuple(name for name in declared(JobSpec) if name not in _NOT_HERE)
_WAITS = {"after", "after_any", "after_failure"}
"""Directives that replace a Slurm dependency."""


class Script(NamedTuple):
    """The command that runs a script, its job fields, and the place of each field."""

    command: list[str]
    spec: dict[str, Any]
    place: Place


class _Directive(NamedTuple):
    """A word such as `gpu=1`, and its line number; `value` is None without a `=`."""

    name: str
    value: str | None
    line: int


def no_flags() -> dict[str, Any]:
    """Return the flags' values when none is given."""
    return {name: () if flag.repeatable else None for name, (_, flag) in FLAGS.items()}


def read_script(path: Path, environ: dict[str, str], own: dict[str, Any], *, for_slurm: bool = False) -> Script:
    """Read a script's directives; raises SpecError with all errors in them. An `#SBATCH` option counts unless a
    directive or a flag (`own`) sets the same field; ignored options are listed on stderr. With `for_slurm`, `#SBATCH`
    lines are not read.
    """
    lines = read_text(path).splitlines()
    code = next((number for number, line in enumerate(lines) if line.strip() and not line.startswith("#")), len(lines))
    wrong: list[ErrorRecord] = []
    directives = list(_directives(path, lines, code, wrong))
    spec, at = _fields(path, directives, environ, wrong)

    def place(field: str) -> str:
        return next((at[one] for one in (field, *above(field)) if one in at), "")

    asks = merged(spec, own)
    said = {name.replace("-", "_") for name in (*asks, *asks.get("resources", {}))}
    slurm = [] if for_slurm else of_slurm(lines[:code])
    all_of_theirs = (of for read in slurm for of in _of_slurm(read))
    theirs = [of for of in all_of_theirs if not said & {of.name, of.name.replace("if_late", "deadline")}]
    for read in slurm:
        refused = (one for one in read.wrong if one.field != "--dependency" or not said & _WAITS)
        wrong += [msgspec.structs.replace(one, at=f"{path}:{read.line}") for one in refused]
    if theirs and not wrong:
        spec, at = _fields(path, list({of.name: of for of in theirs}.values()) + directives, environ, wrong)
        asks = merged(spec, own)
    if wrong:
        try:
            compile_spec(asks | {"run": "true"}, wall=time.time())  # to find further errors
        except SpecError as error:
            wrong += placed(error.record, place).all()
        raise together([msgspec.structs.replace(one, others=()) for one in wrong])
    if not slurm:
        return Script(_command(path, lines), spec, place)
    variables, unknown = variables_of_slurm("\n".join(lines[code:]), asks, tasks_of_slurm(lines[:code]))
    lost = [f"`{name}` (line {read.line})" for read in slurm for name in read.lost] + [f"`${name}`" for name in unknown]
    if lost:
        say(f"poise: ignored, nothing here is the same: {', '.join(dict.fromkeys(lost))}")
    return Script(_with_variables(_command(path, lines), variables), spec, place)


def _of_slurm(read: Read) -> Iterator[_Directive]:
    """Yield the directives that replace a line of `#SBATCH`."""
    for word in read.words:
        name, equals, value = word.partition("=")
        yield _Directive(name.replace("-", "_"), value if equals else None, read.line)


def _with_variables(command: list[str], variables: Mapping[str, str]) -> list[str]:
    """Wrap the command to set variables whose values are known only where it runs."""
    if not variables:
        return command
    told = " ".join(f"{name}={value}" for name, value in variables.items())
    return ["/bin/sh", "-c", f'export {told}; exec "$@"', *command[-1:], *command]


def _command(path: Path, lines: list[str]) -> list[str]:
    """Return the command: by the script's first line, else the shell, or the submitter's Python for a .py file."""
    script = str(path.absolute())
    if lines and lines[0].startswith("#!") and (words := lines[0][2:].split(maxsplit=1)):
        return [*(word.strip() for word in words), script]
    if not path.name.endswith(".py"):
        return ["/bin/sh", script]
    return [shutil.which("python3") or shutil.which("python") or "python3", script]


def _directives(path: Path, lines: list[str], code: int, wrong: list[ErrorRecord]) -> Iterator[_Directive]:
    for number, line in enumerate(lines, start=1):
        at = f"{path}:{number}"
        match = _OURS.fullmatch(line.strip())
        if match is None:
            if number <= code and _NEARLY.match(line):
                hint = f"#POISE {_NEARLY_BEGINS.sub('', line)}"
                what = "a directive begins with `#POISE` and a space"
                wrong.append(ErrorRecord(code="E102", message=what, at=at, have=line.strip()[:80], hint=hint[:120]))
            continue
        if number > code or line[:1].isspace():
            what = "a directive stands at the head of a script, before the first line of code"
            hint = f"move it up, above line {code + 1}"
            wrong.append(ErrorRecord(code="E102", message=what, at=at, have=line.strip()[:80], hint=hint))
            continue
        try:
            words = shlex.split(match[1] or "", comments=True)
        except ValueError as error:
            what = f"the directive cannot be read: {str(error).lower()}"
            wrong.append(ErrorRecord(code="E102", message=what, at=at, have=line[:80], hint='#POISE name="my run"'))
            continue
        if "=" in words or any(word.startswith("=") or word.find("=") == len(word) - 1 for word in words[:-1]):
            what, hint = "a directive has no blanks around `=`", re.sub(r"\s*=\s*", "=", line.strip())[:120]
            wrong.append(ErrorRecord(code="E102", message=what, at=at, have=line[:80], hint=hint))
            continue
        for word in words:
            name, equals, value = word.lstrip("-").partition("=")
            yield _Directive(name.replace("-", "_"), value if equals else None, number)


def _fields(
    path: Path, directives: list[_Directive], environ: dict[str, str], wrong: list[ErrorRecord]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the job fields that directives set, and the place of each."""
    flags = no_flags()
    spec: dict[str, Any] = {}
    at: dict[str, str] = {}
    seen: set[str] = set()
    for name, value, line in directives:
        where = f"{path}:{line}"
        sets, flag = FLAGS.get(name, (f"resources.{name}" if name in _RESOURCES else name, None))
        is_flag, repeatable = flag is not None and not flag.metavar, flag is not None and flag.repeatable
        record = _refusal(name, value, is_flag, name in seen and not repeatable)
        if record is not None:
            wrong.append(msgspec.structs.replace(record, at=where))
            continue
        seen.add(name)
        field = f"{sets}.{(value or '').partition('=')[0]}" if name in ("env", "secret") else sets
        at[field] = where
        if flag is not None and not (value or "").startswith(("{", "[")):  # values in braces or brackets are YAML
            flags[name] = (*flags[name], value) if repeatable else is_flag or value
            continue
        try:
            told = value if name in ("class", "backend") else parse_yaml(value or "", name, field=name)
        except SpecError as error:
            wrong.append(msgspec.structs.replace(error.record, field=field, at=where, hint=f"#POISE {name}=…"))
            continue
        if name in _RESOURCES:
            spec.setdefault("resources", {})[name] = told
        else:
            spec[name] = told
    try:
        return merged(spec, asked(flags, environ)), at
    except SpecError as error:
        field = error.record.field.removeprefix("--")
        sets = FLAGS[field][0] if field in FLAGS else field.partition(".")[0]
        lines = (line for one, line in at.items() if one.partition(".")[0] == sets)
        wrong.append(msgspec.structs.replace(error.record, at=next(lines, "")))
        return spec, at


def _refusal(name: str, value: str | None, is_flag: bool, twice: bool) -> ErrorRecord | None:
    names = dict.fromkeys((*FLAGS, *_RESOURCES, *_FIELDS))
    if name not in names or name == "resources":
        other = ANOTHER_NAME.get(name)
        hint = (f"did you mean `{other}`?" if other in names else near(name, names)) or f"known: {', '.join(names)}"
        if name in _NOT_HERE:
            hint = "write it into a job file: `poise submit FILE.yaml`"
        return ErrorRecord(code="E102", message=f"there is no directive `{name[:80]}`", have=name[:80], hint=hint)
    if (value is None) != is_flag:
        hint = f"#POISE {name}" if is_flag else f"#POISE {name}=…"
        need = "no value" if is_flag else "a value"
        return ErrorRecord(code="E102", message=f"`{name}` takes {need}", field=name, need=need, hint=hint)
    if twice:
        return ErrorRecord(code="E107", message=f"`{name}` is said twice", field=name, hint="drop one of them")
    return None
