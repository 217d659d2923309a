"""Flags for the requirements of a job, shared by `run`, `submit` and `plan`."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from poise.cli.render import say
from poise.errors import ErrorRecord, PoiseError, SpecError
from poise.model.changing import CHANGEABLE
from poise.model.document import above
from poise.model.fields import Flag
from poise.model.job_fields import flagged
from poise.model.secrets import each
from poise.model.sweep import PREFIX
from poise.units import bytes_meant

Function = TypeVar("Function", bound=Callable[..., Any])


FLAGS = {flag.keyword: (path, flag) for path, _, flag in flagged()}
"""The flags by keyword, each with the field that it sets (`resources.gpu`), in the order of `--help`."""

_IN_SERVICE = {name: of for name, of in FLAGS.items() if of[1].in_service or of[0].startswith("resources.")}
"""The flags for the requirements of a process."""


OPTIONAL_VALUE = frozenset(flag.name for _, flag in FLAGS.values() if flag.metavar.startswith("[="))
"""Flags whose value is optional."""


def _option(flag: Flag) -> Callable[[Function], Function]:
    names = (flag.short, flag.name) if flag.short else (flag.name,)
    if not flag.metavar:
        return click.option(*names, flag.keyword, is_flag=True, help=flag.help)
    return click.option(*names, flag.keyword, metavar=flag.metavar, multiple=flag.repeatable, help=flag.help)


class Asking(click.Command):
    """A command with job flags. A flag in `OPTIONAL_VALUE` takes a value only after `=`, or none."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, self._told(list(args), interspersed=ctx.allow_interspersed_args))

    def _told(self, args: list[str], *, interspersed: bool) -> list[str]:
        """Rewrite `--sync` as `--sync=`, which the parser reads as a flag without a value. Arguments after the flags of
        this command stay as they are.
        """
        valued = {
            name
            for option in self.params
            if isinstance(option, click.Option) and not option.is_flag and not option.count
            for name in option.opts
        }
        at = 0
        while at < len(args) and args[at] != "--":
            if args[at] in OPTIONAL_VALUE:
                args[at] += "="
            elif args[at] in valued:
                at += 1
            elif not args[at].startswith("-") and not interspersed:
                break
            at += 1
        return args


def asking(function: Function) -> Function:
    """Add all job flags; the function gets each as a keyword argument."""
    return _with(FLAGS, function)


def needing(function: Function) -> Function:
    """Add the flags for the requirements of a process, without other job flags."""
    return _with(_IN_SERVICE, function)


_CHANGING = {name: of for name, of in FLAGS.items() if of[0] in CHANGEABLE or of[0].partition(".")[0] == "deadline"}
"""The flags that can change a submitted job. `--no-preempt` is a switch in `poise set`, so it is left out here."""
del _CHANGING["no_preempt"]


def changing(function: Function) -> Function:
    """Add the flags that can change a submitted job."""
    return _with(_CHANGING, function)


def _with(those: dict[str, tuple[str, Flag]], function: Function) -> Function:
    """Add flags, except those that the command defines itself: `plan --output` is the output format."""
    own = {name for option in getattr(function, "__click_params__", ()) for name in option.opts}
    for _, flag in reversed(those.values()):
        if flag.name not in own:
            function = _option(flag)(function)
    return function


SCRIPTS = (".sh", ".bash", ".py")


def is_script(name: str) -> bool:
    """Return whether the name is that of an existing script, by its ending; scripts are read for directives."""
    return name.endswith(SCRIPTS) and Path(name).is_file()


def needed(flags: dict[str, Any], environ: dict[str, str]) -> dict[str, Any]:
    """Return the fields that the flags of `needing` set."""
    return _said(_IN_SERVICE, flags, environ)


def asked(flags: dict[str, Any], environ: dict[str, str], *, clears: bool = False) -> dict[str, Any]:
    """Return the job fields that the flags set. Folders are relative to the working directory. An empty value is
    refused, unless it `clears` a field: `--after "$LAST"` without `LAST` would start the job at once.
    """
    for name, (_, flag) in FLAGS.items() if not clears else ():
        given, optional = flags.get(name), flag.metavar.startswith("[")
        if not optional and (given == "" or (isinstance(given, tuple) and "" in given)):
            raise SpecError("the value is empty", field=flag.name, need=flag.metavar, hint=f"leave out `{flag.name}`")
    spec = _said(FLAGS, flags, environ)
    if isinstance(spec.get("sync"), str):
        spec["sync"] = str(Path(spec["sync"]).expanduser().absolute())
    return spec


def _said(those: Mapping[str, tuple[str, Flag]], flags: dict[str, Any], environ: dict[str, str]) -> dict[str, Any]:
    spec: dict[str, Any] = {}
    for name, (path, flag) in those.items():
        given = flags.get(name)
        if given is None or given is False or given == ():
            continue
        outer, _, inner = path.rpartition(".")
        value = flag.reads(given, environ)
        if outer:  # its main value may come from the file or script
            spec[outer] = _as_mapping(spec.get(outer, {}), outer) | {inner: value}
        else:
            spec[inner] = value
    return spec


_ACTION = {"deadline": "if_late", "idle": "if_idle"}
"""Flags of a field that is a mapping: that of its main value, and that of its action."""

_A_FIELD = re.compile(r"([\w-]+): ([^\s{}\[\]]+)")


@contextmanager
def told_as_flags(flags: dict[str, Any]) -> Iterator[None]:
    """Let errors about fields that these flags set name the flag (`--memory` for `resources.memory`), with a hint."""
    try:
        yield
    except PoiseError as error:
        first, *others = [_as_flag(one, flags) for one in error.record.all()]
        error.record = msgspec.structs.replace(first, others=tuple(others))
        raise


def _as_flag(record: ErrorRecord, flags: dict[str, Any]) -> ErrorRecord:
    name = flag_of(record.field)
    given = flags.get(name) or flags.get(_ACTION.get(name, ""))
    if record.at or not given:
        return msgspec.structs.replace(record, others=())
    match = _A_FIELD.fullmatch(record.hint)
    meant = flag_of(match[1]) if match else ""
    hint = record.hint
    if match and meant in flags:
        hint = FLAGS[meant][1].name + ("" if match[2] == "true" else f" {match[2]}")
    flag = FLAGS[name][1]
    if flag.example and (match or not record.hint):
        hint = f"{flag.name} {flag.example}"
    return msgspec.structs.replace(record, field=flag.name, hint=hint, others=())


def flag_of(field: str) -> str:
    """Return the keyword of the flag that sets a field, or a part of it; empty if there is none."""
    if field == "by":
        return "deadline"
    for one in (field, *above(field)):
        for name, (path, _) in FLAGS.items():
            if one in (path, path.partition(".")[2]):
                return name
    return ""


def note_unused(spec: dict[str, Any]) -> None:
    """If the command names no parameter of its sweep, print where a task finds its values."""
    names = spec.get("sweep")
    texts = [*spec["run"], *map(str, spec.get("env", {}).values())]
    if names and not any(f"{{{name}}}" in text or PREFIX in text for name in names for text in texts):
        name = next(iter(names))
        say(f"poise: the command does not contain `{{{name}}}`; each task finds its value in {PREFIX}{name.upper()}")


def note_units(spec: dict[str, Any]) -> None:
    """Print how an ambiguous unit of memory is read: `4G` is 4 GiB here, but 4 GB in some other programs."""
    tasks = spec.get("tasks")
    for task in (spec, *(tasks.values() if isinstance(tasks, dict) else ())):
        found = task.get("resources") if isinstance(task, dict) else None
        resources = found if isinstance(found, dict) else {}
        for name in ("memory", "gpu_memory"):
            if meant := bytes_meant(resources.get(name)):
                say(f"poise: {name} {str(resources[name]).strip()} is read as {meant}")


def merged(spec: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Return the job with the fields of `own` in place of its own. Resources, variables, secrets, and the parts of
    retries and of the deadline are replaced one by one. Raises SpecError.
    """
    spec = each(spec, lambda told, at: told)
    both = {
        name: spec[name] | own[name]
        for name in ("env", "resources", "retry", "secrets")
        if isinstance(spec.get(name), dict) and isinstance(own.get(name), dict)
    }
    for name in _SHORT:
        if spec.get(name) is not None and own.get(name) is not None:
            both[name] = _as_mapping(spec[name], name) | _as_mapping(own[name], name)
    return spec | own | both


_SHORT = {"deadline": "by", "idle": "after"}
"""Fields that may be a mapping or a single value, with the name that the value has in the mapping."""


def _as_mapping(said: Any, name: str) -> dict[str, Any]:
    """Return the value of a field such as `30m` as a mapping."""
    return said if isinstance(said, dict) else {_SHORT[name]: said}
