"""Reading YAML that somebody else wrote: bounded, no tags, no surprises.

Refused: a file over the size limit before it is read, nesting over a depth, more nodes than a job could need (which
catches aliases that multiply), a key given twice. `yes`, `no`, `on`, `off` and `12:30` are texts, as in YAML 1.2.
"""

import re
from pathlib import Path
from typing import Any, Literal

import yaml

from poise.config import MAX_BODY
from poise.errors import SpecError
from poise.units import format_bytes

MAX_DEPTH = 32
MAX_NODES = 200_000

_BASE: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_BASE):  # type: ignore[misc]
    """YAML 1.2's core types, and no key twice."""


_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?(?:0|[1-9][0-9]*)", "-+0123456789"),
    (
        "float",
        r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+0123456789.",
    ),
    ("null", r"~|null|Null|NULL|", "~nN\0"),
):
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$"), list(_first) + ([""] if _tag == "null" else [])
    )


def _mapping(loader: Any, node: Any, deep: bool = False) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str):
            raise _at(key_node, "a key is a text", "E102", have=str(key), hint=f'"{key}":')
        if key in seen:
            raise _at(
                key_node, f"the key `{key}` is given twice", "E107", have=key, hint="rename or remove one of them"
            )
        seen.add(key)
    return {
        loader.construct_object(key, deep=True): loader.construct_object(value, deep=True) for key, value in node.value
    }


_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)


def load_yaml(path: Path) -> Any:
    """The one document of a file. Raises `SpecError` (E101, or E107 for a key given twice) with the line."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BODY + 1)  # not by its size: a pipe has none
        if len(content) > MAX_BODY:
            raise SpecError(
                "the file is too large",
                code="E101",
                field=str(path),
                need=f"at most {format_bytes(MAX_BODY)}",
                have=format_bytes(max(path.stat().st_size, len(content))),
                hint="a task cut by data: `parts: 100` instead of 100 tasks",
            )
        text = content.decode()
    except OSError as error:
        raise SpecError(
            f"the file cannot be read: {error.strerror}", code="E101", field=str(path), hint=f"`ls -l {path}`"
        ) from None
    except UnicodeDecodeError as error:
        raise SpecError(
            "the file is not UTF-8 text", code="E101", field=str(path), have=str(error), hint=f"`file {path}`"
        ) from None
    return parse_yaml(text, str(path))


def load_kind(path: Path, wanted: Literal["job", "fleet", "policy"]) -> Any:
    """The one document of a file of this kind. Raises `SpecError` for one that looks like a file of another."""
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


_USED_BY = {"job": "poise submit", "fleet": "poise up --fleet", "policy": "poise up --policy"}
_TELLING = {"job": ("run", "tasks", "artifacts"), "fleet": ("nodes",), "policy": ("extends", "score", "order")}
"""Fields that files of one kind have only."""


def _kind_of(document: Any) -> str:
    """What a document says that it is, or what its fields tell; empty if neither does."""
    if not isinstance(document, dict):
        return ""
    said = document.get("kind")
    if said in ("job", "graph"):
        return "job"
    if said in ("fleet", "policy"):
        return str(said)
    return next((kind for kind, fields in _TELLING.items() if any(field in document for field in fields)), "")


def parse_yaml(text: str, name: str) -> Any:
    """Parse one document; `name` is what errors call it."""
    try:
        _check_bounds(text, name)
        return yaml.load(text, _Loader)  # noqa: S506 — a safe loader
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark is not None else name
        problem = getattr(error, "problem", None) or str(error)
        raise SpecError(f"this is not YAML: {problem}", code="E101", field=where, hint="run: echo hello") from None
    except SpecError as error:
        if error.record.field.startswith(":"):
            raise SpecError(
                str(error),
                code=error.record.code,
                field=f"{name}{error.record.field}",
                have=error.record.have,
                hint=error.record.hint,
            ) from None
        raise
    except (RecursionError, ValueError) as error:
        raise SpecError(
            f"this is not YAML that can be read: {error}", code="E101", field=name, hint="run: echo hello"
        ) from None


class _Open:
    """A collection being walked: how many values came before it, and how deep it has gone."""

    def __init__(self, anchor: str | None, before: int, deepest: int) -> None:
        self.anchor = anchor
        self.before = before
        self.deepest = deepest


def _check_bounds(text: str, name: str) -> None:
    """Walk the events, which cost no memory, before anything is built. An alias counts as what it stands for."""
    nodes = 0
    known: dict[str, tuple[int, int]] = {}  # of what an anchor names: values, levels
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


def _at(node: Any, message: str, code: str, *, have: str, hint: str) -> SpecError:
    mark = node.start_mark
    return SpecError(message, code=code, field=f":{mark.line + 1}:{mark.column + 1}", have=have, hint=hint)
