"""What agent and control plane say to each other over the node's channel: msgpack frames, one record each.

Level-triggered: on every connection the agent says what it holds (`Hello`), the control plane answers with what should
be there (`Desired`, complete), and both then send changes. Everything is idempotent by attempt: a task and its epoch.
"""

from typing import Annotated

import msgspec

from poise.model.jobs import Ending, Limits, Speedups
from poise.model.load import Load, Upkeep
from poise.model.resources import Node, Shape
from poise.model.training import Orders, Training
from poise.model.trees import Tree
from poise.model.usage import MAX_WINDOWS, Window
from poise.units import SECOND


class Attempt(msgspec.Struct, frozen=True, order=True, array_like=True, gc=False):
    """One try at one task: `task` is `job.task`, `epoch` counts its unit's placements from 1."""

    task: str
    epoch: int

    def __str__(self) -> str:
        return f"{self.task}#{self.epoch}"


class Launch(Limits, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """All a node needs to run one attempt. `env` is complete but for the POISE_ names and devices, which the node adds.
    `secrets` are sealed; as the launch leaves for its node they are opened, and become part of `env`.

    `slots` is how many attempts of `shape` may run at once on this node, as of this launch; one that is `queued` waits
    for another of them to end, any other has room of its own. One that `serves` gets a `key`, by which whoever
    sends it work knows it; its node makes that if there is none. `expect` is the run time that the control plane
    foresees in nanoseconds; 0 is unknown. Exclusive work has a `lease` in nanoseconds (0: none), from when the node
    sent what was last answered: when that runs out, nothing of it runs. A member of an elastic `gang` joins it in a
    `generation`, as `rank` of `world`; `founded` is the epoch in which the gang was placed (0: it is not elastic);
    `first` is the address of the machine of its first member (empty: there is one machine only). Its job was
    `submitted` then, which tells it from others of that name. With a `tree` it runs in a copy of files that it fetches
    by its `key`.
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

    @property
    def orders(self) -> Orders:
        """Who belongs to its gang as it is launched."""
        return Orders(generation=self.generation, world=self.world, rank=self.rank)


class Running(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """An attempt has started; `cpus` are the cores it is bound to (none: unbound)."""

    attempt: Attempt
    pid: int
    cpus: tuple[int, ...] = ()


class Ended(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An attempt has ended, or was handed back unstarted."""

    attempt: Attempt
    ending: Ending


class Told(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a running attempt says of how its unit scales, and of its training."""

    attempt: Attempt
    speedups: Speedups | None = None
    training: Training | None = None


class Ordered(msgspec.Struct, frozen=True, array_like=True):
    """What an attempt is to be told of its gang."""

    attempt: Attempt
    orders: Orders


class Limited(msgspec.Struct, frozen=True, array_like=True):
    """The time limit of an attempt from now on, in nanoseconds from its start (0: none)."""

    attempt: Attempt
    time_limit: int


MAX_NODE_FRAME = 64 * 2**20
"""Bytes of one frame of a node: it may hold as many attempts as a control plane takes units."""

_MANY = msgspec.Meta(max_length=200_000)

MOST_TOLD = 256
"""So many attempts are told of in one report; the others in the next."""


class DeviceFault(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A device has failed such that no work should be given to it. `code` as its driver has it, such as `XID 79`. `id`
    is what the device is known by: by the time this is heard another may be in its place.
    """

    index: int
    code: str
    text: str = ""
    id: str = ""


# agent -> control plane


class Hello(msgspec.Struct, frozen=True, tag="hello", kw_only=True):
    """First frame of a connection: who this is and every attempt it holds; it counts as report 0.

    `queued` are held but not started, `faults` are those of which it is not known that they were heard. `unfit` says
    why nothing can be started there; empty where work can. `address` is this machine's, for members of gangs on other
    machines; empty where there are none. `withdrawn` are devices that attempts hold, and that are there, but are not
    offered any more. The node ends after `left` nanoseconds (0: it does not).
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
    """What has changed since the last report. `serial` counts reports; it is acknowledged when durable. `unfit` as in
    `Hello`; None where that has not changed.
    """

    serial: int
    running: Annotated[tuple[Running, ...], _MANY] = ()
    ended: Annotated[tuple[Ended, ...], _MANY] = ()
    faults: Annotated[tuple[DeviceFault, ...], _MANY] = ()
    told: Annotated[tuple[Told, ...], _MANY] = ()
    unfit: str | None = None


class Beat(msgspec.Struct, frozen=True, tag="beat", kw_only=True, omit_defaults=True):
    """Nothing to say, but alive; or the node's load, where it has changed noticeably since it was last said on this
    connection.

    Each has a `number`, by which it is answered. The next word comes within `every` nanoseconds, unless the node is
    lost; after any other message it comes within a second. `windows` are minutes of which there is something to tell,
    `upkeep` what telling costs.
    """

    load: Load | None = None
    number: int = 0
    every: int = SECOND
    windows: Annotated[tuple[Window, ...], msgspec.Meta(max_length=MAX_WINDOWS)] = ()
    upkeep: Upkeep | None = None


class Output(msgspec.Struct, frozen=True, tag="output", kw_only=True):
    """What an attempt wrote on a machine whose files the control plane does not see: the bytes of its standard output
    or error from `start` on, and when it wrote them, in nanoseconds since 1970 (0: not known).
    """

    attempt: Attempt
    err: bool
    start: Annotated[int, msgspec.Meta(ge=0, le=2**40)]
    data: Annotated[bytes, msgspec.Meta(max_length=2**20)]
    at: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] = 0


class Met(msgspec.Struct, frozen=True, tag="met", kw_only=True):
    """What a member of a gang has left for the others, as a file in their folder: said by its node, and to theirs.
    Without a name a node asks for all that is there of the gang.
    """

    gang: str
    founded: Annotated[int, msgspec.Meta(ge=0)]
    name: str = ""
    data: Annotated[bytes, msgspec.Meta(max_length=2**16)] = b""


class Fed(msgspec.Struct, frozen=True, tag="fed", kw_only=True):
    """Bytes of its input that a command has taken so far, and whether it takes more. It is that of an attempt, or the
    one of a name that runs beside an attempt.
    """

    whose: Attempt | str
    taken: int
    wanted: bool


class Said(msgspec.Struct, frozen=True, tag="said", kw_only=True):
    """What the command of a name wrote to one of its streams, `out` or `err`, beside an attempt."""

    name: str
    stream: str
    data: bytes


class Left(msgspec.Struct, frozen=True, tag="left", kw_only=True, omit_defaults=True):
    """The command of a name has ended with this exit code. `note` is why, where that is not its own doing."""

    name: str
    code: int
    note: str = ""


# control plane -> agent


class Desired(msgspec.Struct, frozen=True, tag="desired", kw_only=True, omit_defaults=True):
    """Launch these, stop those. When `complete`, whatever the node holds beyond `keep` must be stopped.

    `recalls` are handed back if they still wait for a slot, and go on otherwise. `orders` are told before any of it.
    `limited` are attempts whose time limit has changed since they were launched.
    The output of `removed` jobs is deleted; a node that is away keeps its copy until it is pruned.
    """

    launches: tuple[Launch, ...] = ()
    stops: tuple[Attempt, ...] = ()
    recalls: tuple[Attempt, ...] = ()
    keep: tuple[Attempt, ...] = ()
    complete: bool = False
    orders: tuple[Ordered, ...] = ()
    limited: tuple[Limited, ...] = ()
    removed: tuple[str, ...] = ()


class Piece(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A piece of the input of a command: `data` from `at` on, and whether that is the `end` of it. Each byte is taken
    once. A terminal gets a `size`, as `terminal_size` makes it (0: as it is); it hangs up when it is told to, and when
    no other piece comes within `hold` nanoseconds (0: it never does).
    """

    at: int = 0
    data: bytes = b""
    end: bool = False
    size: int = 0
    hold: int = 0
    hang_up: bool = False


class Feed(msgspec.Struct, frozen=True, tag="feed", kw_only=True):
    """Input for the command of an attempt, or for the one of a name; answered with `Fed`, once more can come."""

    whose: Attempt | str
    piece: Piece


class Exec(msgspec.Struct, frozen=True, tag="exec", kw_only=True, omit_defaults=True):
    """Run a command beside that of an attempt, under a name, for as long as this connection lasts. What it writes comes
    as `Said`, at most `CREDIT` bytes before a `Credit`; at its end comes `Left`. `env` adds to the attempt's. With
    `capture` it is the node's own program that takes captures, with these arguments.
    """

    name: str
    attempt: Attempt
    argv: tuple[str, ...]
    env: dict[str, str] = {}
    stdin: bool = False
    tty: int = 0
    capture: tuple[str, ...] = ()


class Get(msgspec.Struct, frozen=True, tag="get", kw_only=True, omit_defaults=True):
    """Give a file or a folder that an attempt has left, as a tar archive: `path` in its folder, which is `folder` on
    this node, or in its copy of a tree `within`. What it holds comes as `Said` under this name, at most `CREDIT` bytes
    before a `Credit`; at its end comes `Left`.
    """

    name: str
    attempt: Attempt
    path: str
    folder: str = ""
    within: str = ""


class Credit(msgspec.Struct, frozen=True, tag="credit", kw_only=True):
    """So many more bytes of output may come of the command of this name."""

    name: str
    bytes: int


class Leave(msgspec.Struct, frozen=True, tag="leave", kw_only=True):
    """Nobody waits for the command of this name any more: it gets SIGHUP, and SIGKILL after 5 s."""

    name: str


class Acked(msgspec.Struct, frozen=True, tag="acked", kw_only=True):
    """Reports up to `serial` are durable; their evidence may be forgotten."""

    serial: int


class Heard(msgspec.Struct, frozen=True, tag="heard", kw_only=True):
    """The beat of this number has come: the way is open in both directions. It waits for no disk."""

    beat: int


class Kept(msgspec.Struct, frozen=True, tag="kept", kw_only=True):
    """What an attempt wrote is kept here up to this place. It may still be lost with the machine."""

    attempt: Attempt
    err: bool
    until: int


FromAgent = Hello | Report | Beat
ToAgent = Desired | Acked | Heard

FromConsole = Fed | Said | Left
ToConsole = Feed | Exec | Get | Credit | Leave
"""What a node passes on between people and commands. It changes nothing that the ledger knows."""

ToNode = ToAgent | Kept | Met | ToConsole
"""All that a node can be told."""
