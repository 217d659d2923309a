"""Messages between agent and control plane over the node's channel: msgpack frames, one record each.

Level-triggered: on every connection the agent sends its current state (`Hello`), the control plane answers with the
complete desired state (`Desired`), and both then send changes. Every message is idempotent by attempt: a task and its
epoch.
"""

from typing import Annotated

import msgspec

from poise.model.jobs import Ending, Limits
from poise.model.load import Load, Upkeep
from poise.model.progress import Speedups
from poise.model.resources import Node, Shape
from poise.model.tenants import DEFAULT
from poise.model.training import Orders, Training
from poise.model.trees import Tree
from poise.model.usage import MAX_WINDOWS, Window
from poise.units import SECOND


class Attempt(msgspec.Struct, frozen=True, order=True, array_like=True, gc=False):
    """One attempt at one task: `task` is `job.task`, `epoch` counts its unit's placements from 1."""

    task: str
    epoch: int

    def __str__(self) -> str:
        return f"{self.task}#{self.epoch}"


class Launch(Limits, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Everything a node needs to run one attempt. `env` is complete except for the POISE_ variables and devices, which
    the node adds. `secrets` are sealed; when the launch is sent to its node they are opened and become part of `env`.

    `slots` is the maximum number of attempts of `shape` that may run at once on this node, as of this launch; a
    `queued` attempt waits for one of them to end, any other has its own resources. An attempt that `serves` gets a
    `key` that authenticates it to senders of work; its node creates the key if there is none. `expect` is the run time
    in nanoseconds that the control plane predicts; 0 is unknown. Exclusive work has a `lease` in nanoseconds (0: none),
    counted from when the node sent its latest acknowledged message: after it expires, none of the work runs. A member
    of an elastic `gang` joins it in a `generation`, as `rank` of `world`; `founded` is the epoch in which the gang was
    placed (0: not elastic); `first` is the address of its first member's machine (empty: there is only one machine).
    `submitted` is the submission time of its job, which distinguishes the job from others with the same name. With a
    `tree` it runs in a copy of files that it fetches with its `key`. The image of a container is pulled with the
    credentials of its `tenant`.
    """

    attempt: Attempt
    argv: tuple[str, ...]
    shape: Shape
    slots: int
    folder: str = ""
    env: dict[str, str] = msgspec.field(default_factory=dict)
    secrets: dict[str, str] = msgspec.field(default_factory=dict)
    devices: tuple[int, ...] = ()
    priority: int = 2
    kind: str = ""
    expect: int = 0
    gang: str = ""
    rank: int = 0
    world: int = 1
    part: int = 0
    parts: int = 0
    queued: bool = False
    serves: bool = False
    lease: int = 0
    generation: int = 0
    founded: int = 0
    key: str = ""
    submitted: int = 0
    first: str = ""
    tree: Tree | None = None
    tenant: str = DEFAULT

    @property
    def orders(self) -> Orders:
        """The gang membership at launch."""
        return Orders(generation=self.generation, world=self.world, rank=self.rank)


class Running(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """An attempt has started; `cpus` are the cores it is bound to (empty: unbound)."""

    attempt: Attempt
    pid: int
    cpus: tuple[int, ...] = ()


class Ended(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An attempt has ended, or was handed back unstarted."""

    attempt: Attempt
    ending: Ending


class Told(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A running attempt's report of its unit's speedups and of its training."""

    attempt: Attempt
    speedups: Speedups | None = None
    training: Training | None = None


class Ordered(msgspec.Struct, frozen=True, array_like=True):
    """Gang membership to send to an attempt."""

    attempt: Attempt
    orders: Orders


class Limited(msgspec.Struct, frozen=True, array_like=True):
    """New limits of an attempt: time in nanoseconds from its start (0: none), memory in bytes (0: unchanged). A smaller
    memory limit applies once the attempt has never used nearly as much for a while; the node answers with `Sized`.
    """

    attempt: Attempt
    time_limit: int
    memory: int = 0


class Sized(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The memory limit of a running attempt was lowered to `memory` bytes; it has used at most `used` so far. If it is
    `short`, it uses nearly all of this limit now: `used` bytes.
    """

    attempt: Attempt
    memory: Annotated[int, msgspec.Meta(ge=0, le=2**62)]
    used: Annotated[int, msgspec.Meta(ge=0, le=2**62)] = 0
    short: bool = False


class Idle(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A session has not been in use for the last `lasts` nanoseconds (0: it is in use again). If it is `due`, its idle
    limit has passed and it can be suspended.
    """

    attempt: Attempt
    lasts: Annotated[int, msgspec.Meta(ge=0, le=2**60)] = 0
    due: bool = False


MAX_NODE_FRAME = 64 * 2**20
"""Maximum bytes of one frame of a node: it may hold as many attempts as a control plane accepts units."""

_MANY = msgspec.Meta(max_length=200_000)

MOST_TOLD = 256
"""Maximum number of attempts in one report; the others go into the next."""


class DeviceFault(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A device failure after which no work should be placed on the device. `code` is the driver's code, such as `XID
    79`. `id` is the identity of the device: when this message arrives, another device may be in its place.
    """

    index: int
    code: str
    text: str = ""
    id: str = ""


# agent -> control plane


class Hello(msgspec.Struct, frozen=True, tag="hello", kw_only=True):
    """First frame of a connection: the node's identity and every attempt it holds; it counts as report 0.

    `queued` attempts are held but not started; `faults` are those not yet acknowledged. `unfit` is the reason why
    nothing can be started there; empty if work can start. `address` is this machine's address, for gang members on
    other machines; empty if there are no other machines. `withdrawn` are devices that attempts hold and that still
    exist, but are no longer offered. The node ends after `left` nanoseconds (0: no end).
    """

    node: Node
    queued: Annotated[tuple[Attempt, ...], _MANY] = ()
    running: Annotated[tuple[Running, ...], _MANY] = ()
    ended: Annotated[tuple[Ended, ...], _MANY] = ()
    faults: Annotated[tuple[DeviceFault, ...], _MANY] = ()
    unfit: str = ""
    address: str = ""
    withdrawn: Annotated[tuple[int, ...], _MANY] = ()
    left: Annotated[int, msgspec.Meta(ge=0, le=2**60)] = 0


class Report(msgspec.Struct, frozen=True, tag="report", kw_only=True, omit_defaults=True):
    """Changes since the last report. `serial` counts reports; a report is acknowledged when durable. `unfit` as in
    `Hello`; None if unchanged. `idle` are sessions whose use has changed, `sized` attempts with a lowered memory limit.
    """

    serial: int
    running: Annotated[tuple[Running, ...], _MANY] = ()
    ended: Annotated[tuple[Ended, ...], _MANY] = ()
    faults: Annotated[tuple[DeviceFault, ...], _MANY] = ()
    told: Annotated[tuple[Told, ...], _MANY] = ()
    unfit: str | None = None
    idle: Annotated[tuple[Idle, ...], _MANY] = ()
    sized: Annotated[tuple[Sized, ...], _MANY] = ()


class Beat(msgspec.Struct, frozen=True, tag="beat", kw_only=True, omit_defaults=True):
    """A heartbeat; with the node's load if it has changed noticeably since it was last sent on this connection.

    Each heartbeat has a `number`, which the reply repeats. The next message comes within `every` nanoseconds, unless
    the node is lost; after any other message it comes within a second. `windows` are minutes with data to report,
    `upkeep` is the cost of reporting.
    """

    load: Load | None = None
    number: int = 0
    every: int = SECOND
    windows: Annotated[tuple[Window, ...], msgspec.Meta(max_length=MAX_WINDOWS)] = ()
    upkeep: Upkeep | None = None


class Output(msgspec.Struct, frozen=True, tag="output", kw_only=True):
    """Output of an attempt on a machine whose files the control plane cannot read: the bytes of its standard output or
    error from `start` on, and the time of writing, in nanoseconds since 1970 (0: unknown).
    """

    attempt: Attempt
    err: bool
    start: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    data: Annotated[bytes, msgspec.Meta(max_length=2**20)]
    at: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] = 0


class Met(msgspec.Struct, frozen=True, tag="met", kw_only=True):
    """A file that a gang member shares with the other members in their folder: sent by its node, and to theirs. Without
    a name the node requests all files of the gang.
    """

    gang: str
    founded: Annotated[int, msgspec.Meta(ge=0)]
    name: str = ""
    data: Annotated[bytes, msgspec.Meta(max_length=2**16)] = b""


class Fed(msgspec.Struct, frozen=True, tag="fed", kw_only=True):
    """Bytes of input that a command has taken so far, and whether it accepts more. The command is that of an attempt,
    or a named one that runs beside an attempt.
    """

    whose: Attempt | str
    taken: int
    wanted: bool


class Said(msgspec.Struct, frozen=True, tag="said", kw_only=True):
    """Output of a named command beside an attempt, from one of its streams, `out` or `err`."""

    name: str
    stream: str
    data: bytes


class Left(msgspec.Struct, frozen=True, tag="left", kw_only=True, omit_defaults=True):
    """A named command has ended with this exit code. `note` is the reason if it did not end by itself."""

    name: str
    code: int
    note: str = ""


# control plane -> agent


class Desired(msgspec.Struct, frozen=True, tag="desired", kw_only=True, omit_defaults=True):
    """Attempts to launch and to stop. If `complete`, the node must stop every attempt that is not in `keep`.

    `recalls` are handed back if they still wait for a slot, and continue otherwise. `orders` are delivered before the
    rest. `limited` are attempts whose time limit has changed since they were launched. The output of `removed` jobs is
    deleted; a node that is away keeps its copy until it is pruned. `suspends` are attempts to stop, which keep only
    their memory, and `resumes` those to continue; if `complete`, all others continue.
    """

    launches: tuple[Launch, ...] = ()
    stops: tuple[Attempt, ...] = ()
    recalls: tuple[Attempt, ...] = ()
    keep: tuple[Attempt, ...] = ()
    complete: bool = False
    orders: tuple[Ordered, ...] = ()
    limited: tuple[Limited, ...] = ()
    removed: tuple[str, ...] = ()
    suspends: tuple[Attempt, ...] = ()
    resumes: tuple[Attempt, ...] = ()


class Piece(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A piece of the input of a command: `data` from `at` on, and whether it is the `end`. Each byte is taken once. A
    terminal gets a `size`, as `terminal_size` returns it (0: unchanged); it hangs up on `hang_up`, or if no other piece
    comes within `hold` nanoseconds (0: never).
    """

    at: int = 0
    data: bytes = b""
    end: bool = False
    size: int = 0
    hold: int = 0
    hang_up: bool = False


class Feed(msgspec.Struct, frozen=True, tag="feed", kw_only=True):
    """Input for the command of an attempt or for a named command; answered with `Fed` once more input is accepted."""

    whose: Attempt | str
    piece: Piece


class Exec(msgspec.Struct, frozen=True, tag="exec", kw_only=True, omit_defaults=True):
    """Run a named command beside that of an attempt, for as long as this connection lasts. Its output comes as `Said`,
    at most `CREDIT` bytes before a `Credit`; at its end comes `Left`. `env` adds to the attempt's. With `capture` the
    command is the node's own capture program, with these arguments; with `session`, its program for connections.
    """

    name: str
    attempt: Attempt
    argv: tuple[str, ...]
    env: dict[str, str] = {}
    stdin: bool = False
    tty: int = 0
    capture: tuple[str, ...] = ()
    session: tuple[str, ...] = ()


class Get(msgspec.Struct, frozen=True, tag="get", kw_only=True, omit_defaults=True):
    """Send a file or a folder that an attempt has left, as a tar archive: `path` in its folder, which is `folder` on
    this node, or in its copy of a tree `within`. The content comes as `Said` with this name, at most `CREDIT` bytes
    before a `Credit`; at its end comes `Left`. It is read with the rights of the Unix `account` (empty: of the agent).
    """

    name: str
    attempt: Attempt
    path: str
    folder: str = ""
    within: str = ""
    account: str = ""


class Fetch(msgspec.Struct, frozen=True, tag="fetch", kw_only=True):
    """Fetch the image of work that may run on this node soon, with the credentials of its tenant. The node may ignore
    it."""

    image: str
    tenant: str


class Credit(msgspec.Struct, frozen=True, tag="credit", kw_only=True):
    """Allow this many more bytes of output from the named command."""

    name: str
    bytes: int


class Leave(msgspec.Struct, frozen=True, tag="leave", kw_only=True):
    """Nobody waits for the named command any more: it gets SIGHUP, and SIGKILL after 5 s."""

    name: str


class Acked(msgspec.Struct, frozen=True, tag="acked", kw_only=True):
    """Reports up to `serial` are durable; the node may discard its records of them."""

    serial: int


class Heard(msgspec.Struct, frozen=True, tag="heard", kw_only=True, omit_defaults=True):
    """The heartbeat with this number has arrived: the channel is open in both directions. Sent without waiting for a
    disk. Until the next one of these, heartbeats at most each `pace` nanoseconds are enough (0: no limit).
    """

    beat: int
    pace: Annotated[int, msgspec.Meta(ge=0, le=60 * SECOND)] = 0


class Kept(msgspec.Struct, frozen=True, tag="kept", kw_only=True):
    """The output of an attempt is stored here up to this offset. It may still be lost with the machine."""

    attempt: Attempt
    err: bool
    until: int


FromAgent = Hello | Report | Beat
ToAgent = Desired | Acked | Heard

FromConsole = Fed | Said | Left
ToConsole = Feed | Exec | Get | Credit | Leave
"""Messages that a node relays between people and commands. They do not change the ledger."""

ToNode = ToAgent | Kept | Met | Fetch | ToConsole
"""All messages to a node."""
