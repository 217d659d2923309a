"""Reads YAML from untrusted sources: with limits, and without tags.

Refused are: a file over the size limit (before it is read), nesting over a depth, more nodes than a job could need
(which catches exponential aliases), and duplicate keys. `yes`, `no`, `on`, `off` and `12:30` are texts, as in YAML 1.2.
So are numbers that are not finite (`.inf`, `.nan`, `1e400`), and numbers in `env` and `sweep`: `12.10` stays `12.10`.

    with located(place_in_file(path)):
        compile_fleet(load_kind(path, "fleet"))      # errors tell line and column of their fields
"""

import re
from collections.abc import Collection
from math import isfinite
from pathlib import Path
from typing import Any, Literal

import msgspec
import yaml

from poise.drivers.textfile import read_text
from poise.errors import ErrorRecord, Place, SpecError, together
from poise.model.document import above

MAX_DEPTH = 32
MAX_NODES = 200_000

_BASE: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_BASE):  # type: ignore[misc]
    """YAML 1.2's core types, and no duplicate keys; errors of keys are collected in `found`."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.found: list[ErrorRecord] = []


_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?(?:0|[1-9][0-9]*)", "-+0123456789"),
    ("float", r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+)(?:[eE][-+]?[0-9]+)?", "-+0123456789."),
    ("null", r"~|null|Null|NULL|", "~nN\0"),
):
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$"), list(_first) + ([""] if _tag == "null" else [])
    )


def _mapping(loader: Any, node: Any, deep: bool = False) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str):
            loader.found.append(_at(key_node, "a key is a text", "E102", have=str(key), hint=f'"{key}":'))
        elif key in made:
            what = f"the key `{key}` is given twice"
            loader.found.append(_at(key_node, what, "E107", have=key, hint="rename or remove one of them"))
        else:
            made[key] = loader.construct_object(value_node, deep=True)
    return made


def _number(loader: Any, node: Any) -> float | str:
    value = float(node.value)
    return value if isfinite(value) else str(node.value)


_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)
_Loader.add_constructor("tag:yaml.org,2002:float", _number)

_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
AS_WRITTEN = {"env": _NUMBERS, "sweep": (*_NUMBERS, "tag:yaml.org,2002:bool")}
"""By field whose values become text in the end: the types that must not change it, such as `12.10`, `012` or `1e3`. A
job refuses `true` in `env`."""


def _keep_written(node: Any) -> None:
    """Keep the text of the fields `AS_WRITTEN` of a job, of each task of a graph, and of a service's canary."""
    if not isinstance(node, yaml.MappingNode):
        return
    for place, (key, value) in enumerate(node.value):
        name = key.value if isinstance(key, yaml.ScalarNode) else ""
        if name in AS_WRITTEN:
            node.value[place] = (key, _as_written(value, AS_WRITTEN[name]))
        elif name == "canary":
            _keep_written(value)
        elif name == "tasks" and isinstance(value, yaml.MappingNode):
            for _, task in value.value:
                _keep_written(task)


def _as_written(node: Any, tags: Collection[str]) -> Any:
    """Return a copy of a node with scalars of these types as text. An alias may use the node in another field."""
    if isinstance(node, yaml.MappingNode):
        return yaml.MappingNode(node.tag, [(key, _as_written(of, tags)) for key, of in node.value], node.start_mark)
    if isinstance(node, yaml.SequenceNode):
        return yaml.SequenceNode(node.tag, [_as_written(of, tags) for of in node.value], node.start_mark)
    return yaml.ScalarNode("tag:yaml.org,2002:str", node.value, node.start_mark) if node.tag in tags else node


def load_yaml(path: Path) -> Any:
    """Return the one document of a file. Raises `SpecError` (E101, or E107 for a duplicate key) with the line."""
    text = read_text(path, hint="a task cut by data: `parts: 100` instead of 100 tasks")
    return parse_yaml(text, str(path))


def load_kind(
    path: Path,
    wanted: Literal[
        "job",
        "fleet",
        "policy",
        "world",
        "service",
        "upstreams",
        "keys",
        "rules",
        "shares",
        "reservations",
        "budgets",
        "calendar",
    ],
) -> Any:
    """Return the one document of a file of this kind. Raises `SpecError` if it looks like a file of another kind."""
    document = load_yaml(path)
    found = _kind_of(document)
    if found not in ("", wanted):
        raise SpecError(
            f"this looks like a {found} file, not a {wanted} file",
            field=str(path),
            need=f"a {wanted} file",
            have=f"a {found} file",
            hint=f"`{_USED_BY[found]} {path}`",
        )
    return document


def is_kind(path: Path, kind: str) -> bool:
    """Return whether the file declares this kind, or looks like it."""
    return _kind_of(load_yaml(path)) == kind


_USED_BY = {
    "job": "poise submit",
    "fleet": "poise up --fleet",
    "policy": "poise up --policy",
    "world": "poise simulate --world",
    "service": "poise serve",
    "upstreams": "poise serve",
    "keys": "poise serve --keys",
    "rules": "poise rules check",
    "shares": "poise shares check",
    "reservations": "poise reserve apply",
    "budgets": "poise budgets apply",
    "calendar": "poise forecast --calendar",
}
_TELLING = {
    "job": ("run", "tasks", "artifacts"),
    "fleet": ("nodes",),
    "policy": ("extends", "score", "order"),
    "world": ("stragglers", "losses", "changes", "scaling"),
    "service": ("model", "replicas", "objective"),
    "upstreams": ("upstreams",),
    "keys": ("keys",),
    "rules": ("rules",),
    "shares": ("shares",),
    "reservations": ("reservations",),
    "calendar": ("events",),
}
"""Fields that occur only in files of one kind."""


def _kind_of(document: Any) -> str:
    """Return the kind that a document declares or that its fields imply; "" if neither."""
    if not isinstance(document, dict):
        return ""
    said = document.get("kind")
    if said in ("job", "graph"):
        return "job"
    if isinstance(said, str) and said in _USED_BY:
        return said
    return next((kind for kind, fields in _TELLING.items() if any(field in document for field in fields)), "")


def parse_yaml(text: str, name: str, field: str = "") -> Any:
    """Parse one document, or the value of a `field` of a job; `name` identifies it in errors."""
    try:
        _check_bounds(text, name)
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            if field in AS_WRITTEN:
                node = _as_written(node, AS_WRITTEN[field])
            else:
                _keep_written(node)
            document = None if node is None else loader.construct_document(node)
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark is not None else name
        problem = getattr(error, "problem", None) or str(error)
        hint = _at_line(text, mark.line) if mark is not None else ""
        raise SpecError(
            f"this is not YAML: {problem}", code="E101", field=where, hint=hint or "run: echo hello"
        ) from None
    except (RecursionError, ValueError, TypeError) as error:
        raise SpecError(
            f"this is not YAML that can be read: {error}", code="E101", field=name, hint="run: echo hello"
        ) from None
    if loader.found:
        raise together([msgspec.structs.replace(of, field=f"{name}{of.field}") for of in loader.found])
    return document


def _at_line(text: str, number: int) -> str:
    """Return a hint about the unreadable line, or the line before it if that is empty."""
    lines = text.splitlines()[: number + 1]
    while lines and not lines[-1].strip():
        lines.pop()
    if not lines:
        return ""
    line = lines[-1].strip()
    name, colon, value = line.partition(": ")
    if colon and ": " in value and value[0] not in "\"'{[" and '"' not in value:
        return f'{name}: "{value}"'[:120]
    return f"look at line {len(lines)}: `{line[:80]}`"


def place_in_file(path: Path) -> Place:
    """Return a function from fields of a YAML file to line and column; a missing field gets those of its parent. The
    file is read again at the first call, unless it is a pipe or a device.
    """
    marks: dict[str, tuple[int, int]] = {}

    def place(field: str) -> str:
        if not marks:
            marks.update(_marks(path))
        known = next((one for one in (field, *above(field)) if one in marks), "")
        line, column = marks.get(known, (0, 0))
        return f"{path}:{line}:{column}" if line and field else ""

    return place


def _marks(path: Path) -> dict[str, tuple[int, int]]:
    """Return line and column by path, of a key or of an item of a list."""
    made: dict[str, tuple[int, int]] = {"": (0, 0)}
    if not path.is_file():
        return made
    try:
        text = read_text(path)
        _check_bounds(text, str(path))
        ahead = [("", yaml.compose(text, _Loader))]
    except (OSError, ValueError, yaml.YAMLError, SpecError):  # it was readable before: not worth another error
        return made
    while ahead:
        at, node = ahead.pop()
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                field = f"{at}.{key.value}" if at else str(key.value)
                made.setdefault(field, (key.start_mark.line + 1, key.start_mark.column + 1))
                ahead.append((field, value))
        elif isinstance(node, yaml.SequenceNode):
            for number, value in enumerate(node.value):
                made[f"{at}[{number}]"] = (value.start_mark.line + 1, value.start_mark.column + 1)
                ahead.append((f"{at}[{number}]", value))
    return made


class _Open:
    """A collection in progress: the number of values before it, and its depth."""

    def __init__(self, anchor: str | None, before: int, deepest: int) -> None:
        self.anchor = anchor
        self.before = before
        self.deepest = deepest


def _check_bounds(text: str, name: str) -> None:
    """Check the limits on parser events, which need no memory, before anything is built. An alias counts as the value
    that it stands for."""
    nodes = 0
    known: dict[str, tuple[int, int]] = {}  # by anchor: number of values, levels
    within: list[_Open] = []
    for event in yaml.parse(text, _Loader):
        reach = 0
        if isinstance(event, yaml.AliasEvent):
            if any(one.anchor == event.anchor for one in within):
                raise SpecError(
                    "the file contains itself", code="E101", field=name, have=f"*{event.anchor}", hint="drop it"
                )
            values, levels = known.get(event.anchor or "", (1, 0))
            nodes, reach = nodes + values, len(within) + levels
        elif isinstance(event, yaml.ScalarEvent):
            nodes += 1
            if event.anchor:
                known[event.anchor] = (1, 0)
        elif isinstance(event, yaml.CollectionStartEvent):
            reach = len(within) + 1
            within.append(_Open(event.anchor, nodes, reach))
            nodes += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            ended = within.pop()
            reach = ended.deepest
            if ended.anchor:
                known[ended.anchor] = (nodes - ended.before, ended.deepest - len(within))
        if within:
            within[-1].deepest = max(within[-1].deepest, reach)
        if reach > MAX_DEPTH:
            raise SpecError(
                "the file is nested too deep",
                code="E101",
                field=name,
                need=f"at most {MAX_DEPTH} levels",
                hint="flatten it",
            )
        if nodes > MAX_NODES:
            raise SpecError(
                "the file holds too much",
                code="E101",
                field=name,
                need=f"at most {MAX_NODES} values",
                hint="a task cut by data: `parts: 100` instead of 100 tasks",
            )


def _at(node: Any, message: str, code: str, *, have: str, hint: str) -> ErrorRecord:
    mark = node.start_mark
    return ErrorRecord(
        code=code, message=message, field=f":{mark.line + 1}:{mark.column + 1}", have=have[:80], hint=hint
    )
