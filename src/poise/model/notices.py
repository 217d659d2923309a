"""Notifications of webhooks and commands about the start, end and failure of jobs.

`NotificationsSpec` is the file `notifications.yaml` in the home, which an operator writes:

    kind: notifications
    key: 3f1c0d...
    commands:
      mail: [/usr/local/bin/mail-about-job, ann@example.org]
    private: [hooks.internal]
    notify: [command:mail]
    notify-on: [failure]
    incidents: [webhook:https://tickets.internal/poise]

A job names commands by these names, so that the right to submit gives nobody a shell where the control plane runs.
"""

import re
from typing import Any, Literal

import msgspec

from poise.errors import SpecError
from poise.model.document import Findings
from poise.model.fields import NAME

Moment = Literal["start", "end", "failure"]
"""`start` the first task starts · `end` the job has ended in any way · `failure` it has ended as failed."""

MOST_TARGETS = 8
MOST_COMMANDS = 100
MOST_URL = 2048

WEBHOOK, COMMAND = "webhook:", "command:"
TARGET = r"(?:webhook:https?://[^\s/?#@]+(?:[/?#]\S*)?|command:[A-Za-z0-9][A-Za-z0-9._-]{0,62})"
TARGETS: dict[str, Any] = {
    "items": {"type": "string", "pattern": f"^{TARGET}$", "maxLength": MOST_URL},
    "maxItems": MOST_TARGETS,
}
"""Targets in a JSON Schema."""

_TARGET, _NAME = re.compile(TARGET), re.compile(NAME)


class Notify(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The `targets` of a job and the moments at which they are notified. Webhooks of a `trusted` one may be at private
    addresses: an admin, or the home itself, has named them.
    """

    targets: tuple[str, ...]
    on: tuple[Moment, ...] = ("end",)
    trusted: bool = False


class Notice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The JSON that a webhook or a command gets."""

    id: str
    moment: Moment
    job: str
    name: str
    tenant: str
    user: str
    status: str
    exit_code: int | None
    command: str
    note: str
    submitted: float
    ended: float
    elapsed: float


class NotificationsSpec(msgspec.Struct, forbid_unknown_fields=True, rename={"notify_on": "notify-on"}):
    """A whole file."""

    kind: str = ""
    key: str = ""
    commands: dict[str, list[str]] = msgspec.field(default_factory=dict)
    private: list[str] = msgspec.field(default_factory=list)
    notify: list[str] = msgspec.field(default_factory=list)
    notify_on: list[Moment] = msgspec.field(default_factory=list)
    incidents: list[str] = msgspec.field(default_factory=list)


class Notifications(msgspec.Struct, frozen=True, kw_only=True):
    """A compiled file. Webhooks are signed with `key`, unless it is empty. `private` are hosts at private addresses
    that every user may name; `notify` applies to jobs without their own. `incidents` are targets of incidents.
    """

    key: str = ""
    commands: dict[str, tuple[str, ...]] = {}
    private: frozenset[str] = frozenset()
    notify: Notify | None = None
    incidents: tuple[str, ...] = ()


def compile_notifications(document: Any) -> Notifications:
    """Compile a parsed file. Raises SpecError with every error."""
    found = Findings()
    top = found.convert(document, NotificationsSpec) or NotificationsSpec()
    if top.kind != "notifications":
        what, need = "this file is not about notifications", "notifications"
        found.add(SpecError(what, field="kind", need=need, have=top.kind))
    if len(top.commands) > MOST_COMMANDS:
        what, need = "there are too many commands", f"at most {MOST_COMMANDS}"
        found.add(SpecError(what, field="commands", need=need, have=str(len(top.commands))))
    for name, argv in top.commands.items():
        if not _NAME.fullmatch(name):
            found.add(
                SpecError("a name of letters, digits, `.`, `_` and `-`", code="E107", field="commands", have=name)
            )
        if not argv or not argv[0] or any("\0" in word for word in argv):
            found.add(SpecError("there is no command to run", code="E104", field=f"commands.{name}"))
    notify = compile_notify(top.notify, top.notify_on, "notify", found)
    incidents = compile_notify(top.incidents, [], "incidents", found)
    for target in (*top.notify, *top.incidents):
        if target.startswith(COMMAND) and target.removeprefix(COMMAND) not in top.commands:
            found.add(unknown_command(target, top.commands))
    found.check(lambda field: "commands: {mail: [mail, ann@example.org]}")
    return Notifications(
        key=top.key,
        commands={name: tuple(argv) for name, argv in top.commands.items()},
        private=frozenset(host.lower() for host in top.private),
        notify=None if notify is None else msgspec.structs.replace(notify, trusted=True),
        incidents=incidents.targets if incidents is not None else (),
    )


def compile_notify(targets: list[str], on: list[Moment], field: str, found: Findings) -> Notify | None:
    """Compile the notifications of a job, or the defaults of a home. None without targets."""
    if len(targets) > MOST_TARGETS:
        need = f"at most {MOST_TARGETS}"
        found.add(SpecError("there are too many targets", field=field, need=need, have=str(len(targets))))
    for place, target in enumerate(targets):
        found.get(None, check_target, target, f"{field}[{place}]")
    if on and not targets:
        what, hint = "nobody is named who is to be told", "notify: [webhook:https://hooks.example.org/poise]"
        found.add(SpecError(what, code="E105", field="notify-on", hint=hint))
    return Notify(targets=tuple(dict.fromkeys(targets)), on=tuple(dict.fromkeys(on)) or ("end",)) if targets else None


def check_target(target: str, field: str) -> None:
    """Raise SpecError unless it is a webhook's URL or the name of a command."""
    from urllib.parse import urlsplit  # only if there is a target: commands import this module at their start

    problem = "" if len(target) <= MOST_URL and _TARGET.fullmatch(target) else "this is no target"
    if not problem and target.startswith(WEBHOOK):
        try:
            split = urlsplit(target.removeprefix(WEBHOOK))
            problem = "" if split.hostname and split.port != 0 else "this is no target"
        except ValueError:
            problem = "this is no target"
    if problem:
        need = "webhook:URL with http or https and without a password, or command:NAME"
        hint = "notify: [webhook:https://hooks.example.org/poise]"
        raise SpecError(problem, code="E103", field=field, need=need, have=target[:80], hint=hint)


def unknown_command(target: str, known: dict[str, Any]) -> SpecError:
    """Return the error for a command that the home does not define."""
    names = ", ".join(known) or "none"
    hint = "`commands:` in `notifications.yaml` of the home"
    what = "this home has no such command for notifications"
    return SpecError(what, code="E105", field="notify", need=f"one of: {names}", have=target[:80], hint=hint)
