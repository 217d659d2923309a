"""Reading YAML that somebody else wrote: bounded, no tags, no surprises.

Refused: a file over the size limit before it is read, nesting over a depth, more nodes than a job could need (which
catches aliases that multiply), a key given twice. `yes`, `no`, `on`, `off` and `12:30` are texts, as in YAML 1.2.
"""

import re
from pathlib import Path
from typing import Any

import yaml

from poise.config import MAX_BODY
from poise.errors import SpecError

MAX_DEPTH = 32
MAX_NODES = 200_000

_BASE: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_BASE):  # type: ignore[misc]
    """YAML 1.2's core types, and no key twice."""


_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?(?:0|[1-9][0-9]*)", "-+0123456789"),
    ("float", r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)", "-+0123456789."),
    ("null", r"~|null|Null|NULL|", "~nN\0"),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$"), list(_first) + ([""] if _tag == "null" else []))


def _mapping(loader: Any, node: Any, deep: bool = False) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str):
            raise _at(key_node, "a key is a text", "E102", have=str(key), hint=f'"{key}":')
        if key in seen:
            raise _at(key_node, f"the key `{key}` is given twice", "E107", have=key, hint="rename or remove one of them")
        seen.add(key)
    return {loader.construct_object(key, deep=True): loader.construct_object(value, deep=True) for key, value in node.value}


_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)


def load_yaml(path: Path) -> Any:
    """The one document of a file. Raises `SpecError` (E101, or E107 for a key given twice) with the line."""
    try:
        size = path.stat().st_size
        if size > MAX_BODY:
            raise SpecError(
                "the file is too large", code="E101", field=str(path), need=f"at most {MAX_BODY} bytes", have=f"{size} bytes"
            )
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SpecError(f"the file cannot be read: {error.strerror}", code="E101", field=str(path), hint="`ls`") from None
    except UnicodeDecodeError as error:
        raise SpecError("the file is not UTF-8 text", code="E101", field=str(path), have=str(error)) from None
    return parse_yaml(text, str(path))


def parse_yaml(text: str, name: str) -> Any:
    """Parse one document; `name` is what errors call it."""
    try:
        _check_bounds(text, name)
        return yaml.load(text, _Loader)  # noqa: S506 — a safe loader
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark is not None else name
        problem = getattr(error, "problem", None) or str(error)
        raise SpecError(f"this is not YAML: {problem}", code="E101", field=where) from None
    except SpecError as error:
        if error.record.field.startswith(":"):
            raise SpecError(
                str(error), code=error.record.code, field=f"{name}{error.record.field}", have=error.record.have, hint=error.record.hint
            ) from None
        raise
    except (RecursionError, ValueError) as error:
        raise SpecError(f"this is not YAML that can be read: {error}", code="E101", field=name) from None


def _check_bounds(text: str, name: str) -> None:
    """Walk the events, which cost no memory, before anything is built from them."""
    depth, nodes, sizes = 0, 0, {}
    open_anchors: list[tuple[str | None, int]] = []
    for event in yaml.parse(text, _Loader):
        if isinstance(event, yaml.AliasEvent):
            nodes += sizes.get(event.anchor, 1)
        elif isinstance(event, yaml.ScalarEvent):
            nodes += 1
            if event.anchor:
                sizes[event.anchor] = 1
        elif isinstance(event, yaml.CollectionStartEvent):
            depth, nodes = depth + 1, nodes + 1
            open_anchors.append((event.anchor, nodes))
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
            anchor, before = open_anchors.pop()
            if anchor:
                sizes[anchor] = nodes - before + 1
        if depth > MAX_DEPTH:
            raise SpecError("the file is nested too deep", code="E101", field=name, need=f"at most {MAX_DEPTH} levels")
        if nodes > MAX_NODES:
            raise SpecError("the file holds too much", code="E101", field=name, need=f"at most {MAX_NODES} values")


def _at(node: Any, message: str, code: str, *, have: str, hint: str) -> SpecError:
    mark = node.start_mark
    return SpecError(message, code=code, field=f":{mark.line + 1}:{mark.column + 1}", have=have, hint=hint)
