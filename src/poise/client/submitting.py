"""Submissions: with their working trees, and many over one connection."""

import contextlib
import itertools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from poise.client.link import PATIENCE, SILENCE, Link, encoded, error_of, is_kept_alive, unreachable
from poise.config import Address
from poise.decoding import json_decoder
from poise.drivers.http import ENDED, Answer
from poise.drivers.reach import reach
from poise.drivers.security import ensure_home
from poise.errors import (
    Conflict,
    ErrorRecord,
    Fault,
    InputError,
    NotFound,
    NotLeading,
    PoiseError,
    Unreachable,
    from_record,
)
from poise.model.traces import TRACEPARENT, carried
from poise.units import format_bytes

if TYPE_CHECKING:
    from poise.drivers.sending import Sending
    from poise.drivers.worktree import Snapshot

SEND_TRIES = 3
"""Number of attempts to send a tree that changes meanwhile."""


class Receipt(msgspec.Struct):
    """The response to one submission: the job's id and a note, or the error. If the job serves calls, its caller
    authenticates with `caller_key`.
    """

    job: str = ""
    note: str = ""
    caller_key: str = ""
    error: ErrorRecord | None = None


_receipt = json_decoder(Receipt).decode


def submit_with_files(
    link: Link, spec: dict[str, Any], say: Callable[[str], None], submit: Callable[[dict[str, Any]], Receipt]
) -> Receipt:
    """Submit a job. If it needs its working tree and the control plane lacks it, send the tree and submit again.
    Raises SpecError if the tree cannot be sent.
    """
    from poise.drivers.bringing import brought  # most commands submit nothing

    wanted = brought(spec, remote=isinstance(link.home.elsewhere, Address))
    if wanted is None or (wanted.by_default and not wanted.everywhere and not link.status().elsewhere):
        return submit(spec)
    ensure_home(link.home)

    def without(error: InputError | Fault) -> Receipt:
        if not wanted.by_default or isinstance(error, Unreachable):
            raise error
        told = [f"{one.message}: {one.have}" if one.have else one.message for one in error.record.all()]
        hint = f"{error.record.hint}; or " if error.record.hint else ""
        say(f"the working tree does not go along, because {'; '.join(told)}; {hint}`--sync=off`")
        return submit(spec)

    for left in range(SEND_TRIES - 1, -1, -1):
        try:
            snapshot = wanted.look(link.home.root)
        except (InputError, Fault) as error:
            return without(error)
        with_tree = wanted.told(spec, snapshot)
        try:
            accepted = submit(with_tree)
        except NotFound as error:
            if error.record.field != "tree":
                raise
        except Fault as error:
            if error.record.code != "E216":  # other errors do not concern the files
                raise
            return without(error)
        else:
            say(_copied(snapshot, "none new", everywhere=wanted.everywhere))
            return accepted
        try:
            sent = _send_tree(link, snapshot)
        except (InputError, Fault) as error:
            if not (isinstance(error, Conflict) and left):
                return without(error)
        else:
            say(_copied(snapshot, sent, everywhere=wanted.everywhere))
            return submit(with_tree)
    raise AssertionError("unreachable")


def _send_tree(link: Link, tree: "Snapshot") -> str:
    """Send the pieces of a tree that the control plane lacks. Return a summary of what was sent."""
    from poise.drivers.worktree import sending

    sent = size = 0
    for pieces in sending(tree, link.ask_raw):
        sent, size = sent + len(pieces), size + sum(map(len, pieces))
    return f"{sent} pieces ({format_bytes(size)}) sent" if sent else "none new"


def submit_stream(link: Link, specs: Iterable[dict[str, Any]], keys: Iterable[str] | None = None) -> Iterator[Receipt]:
    """Submit jobs over one connection; see `Client.submit_stream`."""
    from poise.drivers.sending import Sending  # commands do not need it

    head = (
        "POST /v1/jobs HTTP/1.1\r\nHost: poise\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n"
        f"Content-Type: application/x-ndjson\r\nAuthorization: Bearer {link.bearer()}\r\n\r\n"
    ).encode("ascii")
    stream = new_key()
    given = keys if keys is not None else (f"{stream}-{number}" for number in itertools.count())
    numbered = ((with_context(spec, os.environ), key) for spec, key in zip(specs, given, strict=False))
    lines = (encoded({"spec": spec, "key": key}) + b"\n" for spec, key in numbered)
    sending = Sending(lines, SILENCE if link.several else PATIENCE)
    deadline: float | None = None
    with contextlib.closing(sending):
        while not sending.is_done:
            begun = time.monotonic()
            lost: PoiseError = unreachable(link.home, ConnectionError(ENDED))
            try:
                for receipt in _over_one(link, sending, head):
                    deadline = None
                    yield receipt
            except OSError as error:
                lost = unreachable(link.home, error)
            except Fault as refused:
                if not link.another_leads(refused.record):
                    raise
                lost = refused
            if not sending.is_done:
                now = time.monotonic()
                was_quiet = begun <= sending.moved < now - link.patience and not sending.unanswered
                if deadline is None or was_quiet:  # the control plane was up, with nothing to send
                    deadline = now + link.patience
                if now > deadline or not is_kept_alive(link.home):
                    raise lost
                link.turn += 1
                time.sleep(0.05)
    if sending.failure is not None:
        raise sending.failure


def _over_one(link: Link, sending: "Sending", head: bytes) -> Iterator[Receipt]:
    """Yield the receipts of one connection until it ends."""
    with reach(link.home, turn=link.turn) as sock:
        response = Answer(sending.over(sock, head))
        if response.status != 200:
            raise error_of(response)
        for line in response:
            receipt = _receipt(line)
            if receipt.error is not None and link.another_leads(receipt.error):
                raise from_record(receipt.error, NotLeading.status)
            sending.answered()
            yield receipt


def _copied(tree: "Snapshot", how: str, *, everywhere: bool) -> str:
    where = "the command runs" if everywhere else "nodes that have joined run the command"
    left = f"; left out: {told}" if (told := tree.told()) else ""
    return f"{where} in a copy of {tree.root} ({tree.files} files, {how}; results: `poise get`){left}"


def deadlines_in(spec: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the deadlines in the content of a job file: that of the job and those of its tasks."""
    tasks = spec.get("tasks")
    for of in (spec, *(tasks.values() if isinstance(tasks, dict) else ())):
        if isinstance(of, dict) and of.get("deadline") is not None:
            yield of["deadline"]


def is_strict(spec: Mapping[str, Any]) -> bool:
    """Return whether a deadline is checked before submission."""
    return any(isinstance(said, dict) and said.get("if-late") == "refuse" for said in deadlines_in(spec))


def with_context(spec: dict[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the job with the trace context of the environment, unless it has its own. Jobs of a schedule get none:
    they are submitted long after that trace has ended.
    """
    context = carried(environ)
    if not context or spec.get("every") is not None or spec.get("cron"):
        return spec
    env = spec.get("env", {})
    if not isinstance(env, Mapping) or TRACEPARENT in env or TRACEPARENT in spec.get("secrets", ()):
        return spec
    return {**spec, "env": {**env, **context}}


def new_key() -> str:
    """Return a random idempotency key for a submission: resending it has no further effect."""
    return os.urandom(8).hex()
