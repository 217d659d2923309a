"""The argument of `--on kubernetes`: a context of the kubeconfig, and settings as `NAME=VALUE`."""

import re
from typing import NamedTuple

import poise
from poise.errors import InputError
from poise.model.document import near
from poise.units import SECOND, parse_duration

IMAGE = f"poise:{poise.__version__.replace('+', '-')}"
"""The default image of pilots: as `deploy/kubernetes/README.md` builds it."""

NAMES = ("namespace", "priority", "runtime", "pull", "claim", "account", "scheduler")
"""Settings whose values are object names."""

_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,511}")
_KEY = r"[A-Za-z0-9][A-Za-z0-9._/-]{0,316}"
_LABEL = re.compile(rf"{_KEY}:[A-Za-z0-9._-]{{0,63}}")
_TAINT = re.compile(rf"{_KEY}(:[A-Za-z0-9._-]{{0,63}})?")
_NOTE = re.compile(rf"{_KEY}:.{{0,1024}}")

_PAIRS = {
    "select": (_LABEL, "is no label of a node", "LABEL:VALUE"),
    "tolerate": (_TAINT, "is no taint of a node", "KEY, or KEY:VALUE"),
    "label": (_LABEL, "is no label of a Pod", "LABEL:VALUE"),
    "annotation": (_NOTE, "is no annotation of a Pod", "NAME:VALUE"),
}
"""Settings that can be repeated: their format, and parts of the error and its hint."""


OF_PILOTS = ("image", "pods", "waiting", "idle", "grace", "claim", "select", "tolerate")
"""Settings that have no meaning for a scheduler, which creates no pilots and takes all nodes."""


class Settings(NamedTuple):
    """The cluster (`context`; empty: the current one, or the one around this Pod), and how much of it may be used: at
    most `pods` Pods at a time, on nodes that have all labels in `select`, and no taints except those in `tolerate` (an
    empty value: any value). Up to `waiting` of them may wait for a node
    that an autoscaler adds. A Pod is given back after `idle` seconds without work; an evicted one has `grace` seconds
    to move its work.

    Pods run `image` in `namespace` (empty: that of the context), with the priority class `priority`, the runtime class
    `runtime`, the service account `account`, the Secret `pull` for the registry, and these `labels` and `annotations`.
    Checkpoints are stored in the volume of `claim`.

    With a `scheduler`, Poise creates no pilots: it places the Pods that name this scheduler. Its own Pods are those of
    tasks with an image, in the same `namespace` and with the same classes, account, Secret, labels and annotations.
    """

    context: str = ""
    namespace: str = ""
    image: str = IMAGE
    pods: int = 16
    waiting: int = 0
    idle: int = 60
    grace: int = 60
    select: tuple[tuple[str, str], ...] = ()
    tolerate: tuple[tuple[str, str], ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    annotations: tuple[tuple[str, str], ...] = ()
    priority: str = ""
    runtime: str = ""
    pull: str = ""
    claim: str = ""
    account: str = ""
    scheduler: str = ""


def parse_settings(argument: str) -> Settings:
    """Parse settings such as `CONTEXT,namespace=ml,pods=4`. Raises `InputError`."""
    found: dict[str, object] = {}
    pairs: dict[str, list[tuple[str, str]]] = {name: [] for name in _PAIRS}
    for place, part in enumerate(argument.split(",") if argument else ()):
        name, equals, value = part.partition("=")
        if not equals:
            if place or not name:
                raise _wrong(argument, f"`{name}` is no setting", "kubernetes:CONTEXT,NAME=VALUE")
            found["context"] = name
        elif name in NAMES:
            if not _NAME.fullmatch(value):
                raise _wrong(argument, f"`{value}` is no value of `{name}`", f"kubernetes:{name}=NAME")
            found[name] = value
        elif name == "image":
            if not _IMAGE.fullmatch(value):
                raise _wrong(argument, f"`{value}` is no name of an image", "kubernetes:image=REGISTRY/poise:1")
            found[name] = value
        elif name in _PAIRS:
            form, what, hint = _PAIRS[name]
            if not form.fullmatch(value):
                raise _wrong(argument, f"`{value}` {what}", f"kubernetes:{name}={hint}")
            key, _, wanted = value.partition(":")
            pairs[name].append((key, wanted))
        elif name in ("pods", "waiting"):
            if not (value.isascii() and value.isdigit() and 1 <= int(value) <= 10_000):
                raise _wrong(argument, f"`{name}` is a number from 1 to 10000", f"kubernetes:{name}=16")
            found[name] = int(value)
        elif name in ("idle", "grace"):
            found[name] = _seconds(argument, name, value)
        else:
            known = ("image", "pods", "waiting", "idle", "grace", *_PAIRS, *NAMES)
            raise _wrong(argument, f"there is no setting `{name}`", near(name, known) or f"known: {', '.join(known)}")
    useless = [name for name in OF_PILOTS if name in found or pairs.get(name)]
    if "scheduler" in found and useless:
        names = ", ".join(f"`{name}`" for name in useless)
        raise _wrong(argument, f"a scheduler has no pilots, so it does not use {names}", "omit them, or `scheduler=`")
    return Settings(
        select=tuple(pairs["select"]),
        tolerate=tuple(pairs["tolerate"]),
        labels=tuple(pairs["label"]),
        annotations=tuple(pairs["annotation"]),
        **found,  # type: ignore[arg-type]  # each was checked above
    )


def _seconds(argument: str, name: str, value: str) -> int:
    try:
        return -(-parse_duration(value) // SECOND)
    except ValueError as error:
        raise _wrong(argument, f"`{name}`: {error}", f"kubernetes:{name}=1m") from None


def _wrong(argument: str, what: str, hint: str) -> InputError:
    return InputError(what, field="--on", have=f"kubernetes:{argument}", hint=hint)
