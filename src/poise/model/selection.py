"""A part of the nodes of a fleet: a share of them, named nodes, or nodes with certain labels.

    25%                 # a share, the same in each device model
    gpu-1,gpu-2         # these nodes
    zone=a,spot=yes     # nodes with all of these labels

The nodes of a share are drawn by a hash of their names. So the same nodes are in it on every machine, and a node that
joins or leaves changes the membership of few others.
"""

from collections.abc import Iterable, Sequence
from hashlib import sha256

import msgspec

from poise.errors import SpecError
from poise.model.fields import parse_or_raise
from poise.model.resources import Node
from poise.units import parse_share

ALL = 1000
"""Thousandths of a whole fleet."""

MAX_NAMED = 1000
"""Maximum number of names or labels in a selection."""


class Selection(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A `share` (thousandths) of the nodes, the nodes of these `names`, or those with all of these `labels`."""

    share: int = 0
    names: tuple[str, ...] = ()
    labels: dict[str, str] = {}

    def rows(self, nodes: Sequence[Node]) -> list[int]:
        """Return the places of the selected nodes, in order."""
        if self.names or self.labels:
            return [row for row, node in enumerate(nodes) if self._has(node)]
        return _share_of(nodes, self.share)

    def _has(self, node: Node) -> bool:
        labels = all(node.label(name) == value for name, value in self.labels.items())
        return labels and (not self.names or node.name in self.names)

    def __str__(self) -> str:
        if self.share:
            return f"{self.share / 10:g} % of the nodes"
        if self.names:
            return f"{'node' if len(self.names) == 1 else 'nodes'} {', '.join(self.names)}"
        return f"nodes with {', '.join(f'{name}={value}' for name, value in self.labels.items())}"


def parse_selection(text: str | float, field: str) -> Selection:
    """Return the selection in a text. Raises `SpecError`."""
    hint = "`25%`, `n1,n2` or `zone=a`"
    if not isinstance(text, str) or text.endswith("%"):
        share = parse_or_raise(parse_share, text, field, ALL)
        if not 0 < share < ALL:
            what = "a share selects some of the nodes, not all"
            raise SpecError(what, code="E103", field=field, need="0.1% to 99.9%", have=str(text), hint=hint)
        return Selection(share=share)
    words = list(dict.fromkeys(word.strip() for word in text.split(",")))
    pairs = [word.partition("=") for word in words if "=" in word]
    if len(words) > MAX_NAMED or not all(words) or len(pairs) not in (0, len(words)):
        what, need = "this does not select nodes", "a share, names, or labels"
        raise SpecError(what, field=field, need=need, have=text[:80], hint=hint)
    labels = {name: value for name, _, value in pairs}
    if len(labels) < len(pairs) or not all(name and value for name, value in labels.items()):
        what, need = "this does not select nodes", "one value for each label"
        raise SpecError(what, field=field, need=need, have=text[:80], hint=hint)
    return Selection(labels=labels) if pairs else Selection(names=tuple(words))


def check_selection(selection: Selection, nodes: Sequence[Node], field: str) -> None:
    """Raise `SpecError` unless the selection has some of these nodes, not all, and each that it names."""
    known = ", ".join(node.name for node in nodes[:8]) + (", …" if len(nodes) > 8 else "")
    unknown = sorted(set(selection.names) - {node.name for node in nodes})
    if unknown:
        what = f"there is no node {', '.join(unknown[:8])}"
        raise SpecError(what, field=field, have=known or "no nodes", hint="`poise nodes`")
    count = len(selection.rows(nodes))
    if not 0 < count < len(nodes):
        what = f"{selection}: this selects {'all nodes' if count else 'no node'} of this fleet"
        raise SpecError(what, field=field, need="some nodes, not all", have=known or "no nodes", hint="`poise nodes`")


def _share_of(nodes: Sequence[Node], share: int) -> list[int]:
    """Return the rows of a share: at least one node and not all, unless the share is none or all. Each device model has
    its part of it; the largest remainders are rounded up.
    """
    if share in (0, ALL) or len(nodes) < 2:
        return list(range(len(nodes))) if share == ALL else []
    seats = min(max(1, (len(nodes) * share + ALL // 2) // ALL), len(nodes) - 1)
    groups: dict[tuple[str, ...], list[int]] = {}
    for row in sorted(range(len(nodes)), key=lambda row: _drawn(nodes[row].name)):
        groups.setdefault(_models(nodes[row]), []).append(row)
    counts = {models: len(rows) * seats // len(nodes) for models, rows in groups.items()}
    by_remainder = sorted(groups, key=lambda models: (-(len(groups[models]) * seats % len(nodes)), models))
    for models in by_remainder[: seats - sum(counts.values())]:
        counts[models] += 1
    return sorted(row for models, rows in groups.items() for row in rows[: counts[models]])


def _models(node: Node) -> tuple[str, ...]:
    return tuple(sorted({device.model or device.kind for device in node.devices}))


def _drawn(name: str) -> bytes:
    return sha256(name.encode()).digest()


def names_of(nodes: Sequence[Node], rows: Iterable[int]) -> tuple[str, ...]:
    """Return the names of the nodes in these places."""
    return tuple(nodes[row].name for row in rows)
