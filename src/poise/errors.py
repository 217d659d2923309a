"""Every error a user can meet, as one tree.

    PoiseError
    ├── InputError            exit 1: the request cannot be met as it is
    │   ├── SpecError         a file or a flag is wrong; `field` names the place
    │   ├── NotFound          no such job, node, task
    │   ├── Conflict          the name is taken, or the state does not allow it
    │   ├── Denied            no token, a wrong one, or one that has expired
    │   ├── Forbidden         not with this token, or not from there
    │   ├── CallFailed        a function could not be called, or failed in a way that has no exception here
    │   └── Misused           unsupported use of the training library
    └── Fault                 exit 2: Poise or its machine failed
        ├── Unreachable       no control plane answers
        ├── StoreFull         the disk is full: nothing new is accepted, reads continue
        ├── StoreAway         the store of the log does not answer; retried
        ├── NotLeading        another control plane leads; ask that one
        ├── StoreDamaged      the log, or a checkpoint, does not read back as it was written
        ├── StoreNewer        the log was written by a newer Poise
        ├── CallLost          a call was lost with its workers
        ├── GangBroken        the workers of a gang did not find each other, or one was lost
        ├── MemoryShort       no micro-batch is small enough for the memory
        └── Busy              a queue is full; retry

An error has a stable `code`, one sentence without a final period, the field, the needed and the actual value, and a
hint that can be typed. All errors of one document are reported at once: the first error carries the others.
`docs/reference/errors.md` is generated from `CODES`.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar

import msgspec

CODES = {
    "E101": "the file is not YAML, or is too large or too deep",
    "E102": "a field is missing, unknown, or of the wrong type",
    "E103": "a quantity cannot be read, is negative, or is absurd",
    "E104": "a task has no command to run",
    "E105": "`needs` or `after` names something that does not exist",
    "E106": "the graph has a cycle",
    "E107": "a name is used twice, or is not a valid name",
    "E108": "the deadline has passed already, or cannot be met",
    "E109": "a trace has an unknown format, is damaged, or has an invalid row",
    "E110": "no node has the resources that a task asks for",
    "E120": "there is no such job, task or node",
    "E121": "the job or node is not in a state that allows this",
    "E122": "the state has changed since the named revision",
    "E123": "the typed name is ambiguous",
    "E130": "the request carries no token, or a wrong one",
    "E131": "the request comes from a place that is not allowed (Host or Origin)",
    "E132": "the token has expired",
    "E133": "the role of the token does not allow this",
    "E134": "certificate fingerprint mismatch",
    "E135": "the sign-in issuer refused the sign-in, or its token is invalid",
    "E136": "no rule gives this account a tenant",
    "E140": "the request is too large",
    "E141": "the working tree cannot be sent, or its manifest is invalid",
    "E150": "a function cannot be called, or its exception cannot be loaded here",
    "E160": "unsupported use of the training library",
    "E170": "a running task could not be captured",
    "E201": "no control plane answers",
    "E202": "the disk of the log is full",
    "E203": "the log is damaged",
    "E204": "another control plane holds this home",
    "E205": "a queue is full",
    "E206": "the log was written by a newer version",
    "E207": "a call was lost with its workers",
    "E208": "the workers of a gang did not find each other, or one was lost",
    "E209": "training runs out of memory with a single sample",
    "E210": "a checkpoint is damaged",
    "E211": "the store of the log does not answer",
    "E212": "another control plane leads, or there is no leader yet",
    "E213": "the store of the log cannot be used",
    "E214": "the cluster of `--on` does not answer, or does not let this machine in",
    "E215": "a secret cannot be encrypted or decrypted with the keys of this home",
    "E216": "files of a job could not be stored or fetched",
    "E217": "the Python environment of a job could not be built",
    "E218": "the sign-in issuer does not answer",
    "E219": "the last checkpoint of training could not be written",
    "E220": "training has diverged: its weights are not finite",
    "E299": "an internal error",
}


DISTRIBUTION = "poise-scheduler"
"""The distribution name on PyPI, where `poise` is another project."""


def extra(name: str) -> str:
    """Return the command that installs an optional extra, for a hint.

    >>> extra("ray")
    "pip install 'poise-scheduler[ray]'"
    """
    return f"pip install '{DISTRIBUTION}[{name}]'"


class ErrorRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An error as data: in HTTP answers, in `--json`, in logs. `at` is its place in a file (`train.yaml:3:7`: line and
    column), if known; `others` are further errors of the same document.
    """

    code: str
    message: str
    field: str = ""
    at: str = ""
    need: str = ""
    have: str = ""
    hint: str = ""
    others: tuple["ErrorRecord", ...] = ()

    def all(self) -> "tuple[ErrorRecord, ...]":
        """Return this record and the others."""
        return (self, *self.others)


class PoiseError(Exception):
    """Base class of all errors of Poise. `exit_code` is the exit code of the command line, and `status` the HTTP
    status. `noted` lists the parts of the error that a traceback shows below the message.
    """

    exit_code: ClassVar[int] = 2
    status: ClassVar[int] = 500
    default_code: ClassVar[str] = "E299"
    noted: ClassVar[Collection[str]] = ("where", "need", "have", "hint")

    def __init__(
        self, message: str, *, code: str = "", field: str = "", need: str = "", have: str = "", hint: str = ""
    ) -> None:
        super().__init__(message)
        self.record = ErrorRecord(
            code=code or self.default_code, message=message, field=field, need=need, have=have, hint=hint
        )

    @property
    def record(self) -> ErrorRecord:
        return self._record

    @record.setter
    def record(self, record: ErrorRecord) -> None:
        """Set the record, and the notes that tracebacks show; the command line and the API render the record."""
        self._record = record
        self.__notes__ = [note for one in record.all() for note in _notes(one, self.noted, first=one is record)]


def _notes(record: ErrorRecord, noted: Collection[str], *, first: bool) -> Iterator[str]:
    if not first:
        yield f"also: {record.message}"
    where = f"{record.field} ({record.at})" if record.field and record.at else record.field or record.at
    for name, text in (("where", where), ("need", record.need), ("have", record.have), ("hint", record.hint)):
        if text and name in noted:
            yield f"{name}: {text}"


class InputError(PoiseError):
    exit_code = 1
    status = 400
    default_code = "E102"


def client_only() -> InputError:
    """Return the error for a feature that the client-only package lacks."""
    hint = f"`pip install {DISTRIBUTION}` on Linux, or POISE_ADDRESS for a control plane on another machine"
    return InputError("this needs the full package; only the client is installed here", hint=hint)


class SpecError(InputError):
    status = 422


class NotFound(InputError):
    status = 404
    default_code = "E120"


class Conflict(InputError):
    status = 409
    default_code = "E121"


class Denied(InputError):
    status = 401
    default_code = "E130"


class Forbidden(InputError):
    status = 403
    default_code = "E133"


class CallFailed(InputError):
    """A function could not be called, or its exception cannot be loaded in this process."""

    default_code = "E150"


class Misused(InputError):
    """Unsupported use of the training library."""

    default_code = "E160"
    noted = ("need", "hint")

    def __str__(self) -> str:
        """Return the message with the field and the value, because training programs log only the message."""
        said, field, have = self.record.message, self.record.field, self.record.have
        named = said if not field or field in said else f"{said} (`{field}`)"
        return f"{named}: {have}" if have else named


class Fault(PoiseError):
    pass


class CallLost(Fault):
    """A call was lost with its workers: every attempt ended with a dead worker, or no worker could start."""

    default_code = "E207"


class GangBroken(Fault):
    """The workers of a gang did not find each other, or one was lost and no instruction to continue arrived."""

    default_code = "E208"


class Unreachable(Fault):
    status = 503
    default_code = "E201"


class StoreFull(Fault):
    status = 507
    default_code = "E202"


class StoreDamaged(Fault):
    default_code = "E203"


class StoreNewer(Fault):
    """The log was written by a newer Poise; nothing is wrong with it."""

    default_code = "E206"


def newer(message: str, writer: str) -> StoreNewer:
    """Return the error for a log written by the version `writer` (empty: unknown)."""
    hint = f"use Poise {writer} or newer, which wrote this log" if writer else "use the Poise that wrote this log"
    return StoreNewer(message, need=writer, hint=hint)


class StoreAway(Fault):
    """The store of the log does not answer; its content is not damaged."""

    status = 503
    default_code = "E211"


class NotLeading(Fault):
    """This control plane does not lead, or no longer does."""

    status = 503
    default_code = "E212"


class Busy(Fault):
    status = 503
    default_code = "E205"


class MemoryShort(Fault):
    """There is too little memory for one sample, or for a part that cannot be made smaller."""

    default_code = "E209"


def together(records: Sequence[ErrorRecord]) -> SpecError:
    """Return one error for all problems of a document. No record may have `others` of its own."""
    error = SpecError(records[0].message)
    error.record = msgspec.structs.replace(records[0], others=tuple(records[1:]))
    return error


Place = Callable[[str], str]
"""Returns where a field was written, such as `train.yaml:3:7`; empty if unknown."""


def placed(record: ErrorRecord, place: Place) -> ErrorRecord:
    """Return the record, and its others, with the places of their fields as far as `place` knows them."""
    first, *others = [msgspec.structs.replace(one, at=one.at or place(one.field), others=()) for one in record.all()]
    return msgspec.structs.replace(first, others=tuple(others))


@contextmanager
def located(place: Place) -> Iterator[None]:
    """Add the places of fields to the errors that the block raises."""
    try:
        yield
    except PoiseError as error:
        error.record = placed(error.record, place)
        raise


_BY_STATUS: dict[int, type[PoiseError]] = {
    kind.status: kind for kind in (InputError, SpecError, NotFound, Conflict, Denied, Forbidden, Fault, StoreFull, Busy)
}


def from_record(record: ErrorRecord, status: int) -> PoiseError:
    """Return the exception that a client raises for an error response."""
    return _with(record, _BY_STATUS.get(status, InputError if 400 <= status < 500 else Fault))


def from_code(record: ErrorRecord) -> PoiseError:
    """Return the exception for an error record from a file; its code decides between InputError and Fault."""
    return _with(record, InputError if record.code.startswith("E1") or record.code == "E204" else Fault)


def _with(record: ErrorRecord, kind: type[PoiseError]) -> PoiseError:
    error = kind(record.message)
    error.record = record
    return error
