"""Settings as records, and where things lie in a home. Reading the environment is a shell's job."""

from pathlib import Path

import msgspec

from poise.errors import InputError


class Address(msgspec.Struct, frozen=True):
    """A control plane on another machine: where it listens, and the fingerprint of the authority that speaks for it.

    >>> of = Address.parse("head:7718#" + 64 * "a")
    >>> str(of), of.port, of.text == "head:7718#" + 64 * "a"
    ('head:7718', 7718, True)
    """

    host: str
    port: int
    authority: str

    @classmethod
    def parse(cls, text: str, field: str = "POISE_ADDRESS") -> "Address":
        """`HOST:PORT#FINGERPRINT`, as `poise up --listen` prints it. Raises InputError."""
        place, _, authority = text.strip().partition("#")
        host, port = parse_place(place, field)
        if len(authority) != 64 or not set(authority) <= set("0123456789abcdef"):
            raise InputError(
                "an address must end with the fingerprint of its authority",
                field=field,
                need="HOST:PORT#FINGERPRINT",
                have=text[:200],
                hint="`poise status`, where the control plane runs, prints it",
            )
        return cls(host, port, authority)

    @property
    def text(self) -> str:
        return f"{self}#{self.authority}"

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_place(text: str, field: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`, where the host may be an IPv6 address in brackets. Raises InputError.

    >>> parse_place("[::1]:7718", "--listen")
    ('::1', 7718)
    """
    host, _, port = text.rpartition(":")
    inner = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not (_is_host(inner) and (":" not in inner or inner != host) and _is_port(port)):
        raise InputError("this is no address", field=field, need="HOST:PORT", have=text[:200], hint="0.0.0.0:7718")
    return inner, int(port)


def _is_host(text: str) -> bool:
    """Whether it can be looked up: no part of a name is empty, or longer than 63 bytes."""
    try:
        return bool(text.encode("idna"))
    except UnicodeError:
        return False


def _is_port(text: str) -> bool:
    return text.isdecimal() and text.isascii() and len(text) <= 5 and int(text) < 2**16


Door = Path | Address
"""Where a control plane is reached: a socket of this machine, or an address of another one."""


class Home(msgspec.Struct, frozen=True):
    """`POISE_HOME`: everything Poise keeps on one machine. Nothing outside it is written.

    With `elsewhere`, the socket of a control plane that somebody else shares or the address of one on another machine,
    nothing of this home is used. `others` are those of which one leads when that one, or that of this home, does not.
    """

    root: Path
    elsewhere: Door | None = None
    others: tuple[Door, ...] = ()

    @property
    def lock(self) -> Path:
        """Held by the control plane; holds the process id of its holder."""
        return self.root / "lock"

    @property
    def token(self) -> Path:
        return self.root / "token"

    @property
    def secrets_key(self) -> Path:
        """The keys that seal the secrets of jobs (`drivers/vault.py`)."""
        return self.root / "secrets.key"

    @property
    def log(self) -> Path:
        return self.root / "log.db"

    @property
    def socket(self) -> Path:
        return self.elsewhere if isinstance(self.elsewhere, Path) else self.root / "poise.sock"

    @property
    def elsewhere_by(self) -> str:
        """The variable that says that the control plane is elsewhere."""
        return "POISE_ADDRESS" if isinstance(self.elsewhere, Address) else "POISE_SOCKET"

    @property
    def authority(self) -> Path:
        """The authority that speaks for this home's control plane on other machines, and what it signed."""
        return self.root / "authority"

    @property
    def doors(self) -> tuple[Door, ...]:
        """Of all control planes of which one leads."""
        first = self.elsewhere or self.socket
        return (first, *(other for other in self.others if other != first))

    @property
    def addresses(self) -> str:
        """What POISE_ADDRESS says of control planes on other machines; empty where there is one on this machine."""
        return ",".join(door.text for door in self.doors if isinstance(door, Address)) if self.elsewhere else ""

    @property
    def store(self) -> Path:
        """The URL of the database that holds the log, where `log` does not."""
        return self.root / "store"

    @property
    def options(self) -> Path:
        """The flags of `poise up` that later starts use too."""
        return self.root / "options.json"

    @property
    def endpoint(self) -> Path:
        """Written before the control plane answers: its process id, port and version."""
        return self.root / "control.json"

    @property
    def dashboard(self) -> Path:
        """Held by the dashboard; holds its process id."""
        return self.root / "dashboard"

    @property
    def dashboard_endpoint(self) -> Path:
        """The ports of the running dashboard."""
        return self.root / "dashboard.json"

    @property
    def dashboard_opener(self) -> Path:
        """A page that leads a browser to the dashboard by a one-time link, which no list of processes shows."""
        return self.root / "dashboard.html"

    @property
    def failure(self) -> Path:
        """Why the control plane could not start, when a person has to act."""
        return self.root / "failure.json"

    @property
    def left(self) -> Path:
        """There when the control plane has left for want of work: whoever has some may start it again."""
        return self.root / "left"

    @property
    def stay(self) -> Path:
        """There from `poise up` to `poise down`: a control plane is to stay up without jobs, with the kept flags."""
        return self.root / "stay"

    @property
    def supervisor(self) -> Path:
        """Held by the supervisor; holds its process id."""
        return self.root / "supervisor"

    @property
    def node(self) -> Path:
        """The local node's keepers and identity."""
        return self.root / "node"

    @property
    def nodes(self) -> Path:
        """A folder like `node` for each node of a declared fleet, by its name."""
        return self.root / "nodes"

    @property
    def gangs(self) -> Path:
        """Where the members of gangs meet."""
        return self.root / "gangs"

    @property
    def meetings(self) -> Path:
        """What members of gangs on several machines have left for each other, in a folder for each job."""
        return self.root / "meetings"

    @property
    def values(self) -> Path:
        """Arguments and results of calls that are too large for a record, in a folder for each job."""
        return self.root / "values"

    @property
    def checkpoints(self) -> Path:
        """What training saves that names no folder of its own, in a folder for each job."""
        return self.root / "checkpoints"

    @property
    def fleet(self) -> Path:
        """The declared fleet, compiled, where this home has one: its nodes are started instead of this machine."""
        return self.root / "fleet.json"

    def substrate(self, name: str) -> Path:
        """The folder of the substrate of this name, whose machines are this home's nodes (`drivers/clusters.py`)."""
        return self.root / name

    @property
    def policy(self) -> Path:
        """What the policy file said that this home was brought up with: the file itself may change or go."""
        return self.root / "policy.json"

    @property
    def notifications(self) -> Path:
        """Where notifications may go, and the commands for them; written by hand, if at all."""
        return self.root / "notifications.yaml"

    @property
    def devices(self) -> Path:
        """What a person says of this machine's devices; written by hand, if at all."""
        return self.root / "devices.yaml"

    @property
    def profiles(self) -> Path:
        """What was measured of this machine's devices."""
        return self.root / "profiles"

    @property
    def incidents(self) -> Path:
        """Incidents as they were read from the log up to some revision. It can be deleted: the log has them all."""
        return self.root / "incidents"

    @property
    def series(self) -> Path:
        """How busy each node has been, a file of bounded size for each."""
        return self.root / "series"

    @property
    def files(self) -> Path:
        """Files of jobs that clients have sent (`drivers/blobs.py`)."""
        return self.root / "files.db"

    @property
    def fetched(self) -> Path:
        """Files of jobs that nodes of this home have fetched. It can be deleted while none is fetched."""
        return self.root / "fetched.db"

    @property
    def work(self) -> Path:
        """Copies of working trees, in a folder for each job and in it one for each attempt."""
        return self.root / "work"

    @property
    def environments(self) -> Path:
        """Python environments that were built from lock files."""
        return self.root / "environments"

    @property
    def services(self) -> Path:
        """Sockets at which replicas find their gateway."""
        return self.root / "services"

    @property
    def logs(self) -> Path:
        """Standard output and error of every attempt."""
        return self.root / "logs"

    @property
    def traces(self) -> Path:
        """The exporter of traces: its lock, how far it came, and the socket on which gateways tell it of requests."""
        return self.root / "traces"

    @property
    def shadow(self) -> Path:
        """Policies in shadow, what came of them, and the lock of the process of their simulated fleets."""
        return self.root / "shadow"

    @property
    def messages(self) -> Path:
        """What control plane, agent and supervisor have to say."""
        return self.root / "poise.log"


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach a running control plane; `address` is for other machines, where it listens to them."""

    pid: int
    port: int
    version: str
    agent: int = 0
    address: str = ""


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster whose machines are a home's nodes: the `name` of its substrate, and its `address` there, as in `--on
    NAME:ADDRESS`; and where the control plane is to `listen` to its nodes.
    """

    name: str = ""
    address: str = ""
    listen: str

    @property
    def on(self) -> str:
        """Return the value of `--on` that selects this substrate."""
        return f"{self.name}:{self.address}" if self.address else self.name

    @property
    def title(self) -> str:
        """The name of its substrate, for people."""
        return self.name.capitalize()


PAGE = 1000
"""Nodes or jobs that one answer lists at most: the control plane does nothing else while it writes them down."""

MAX_BODY = 4 * 2**20
"""Bytes of one request or file; anything larger is refused before it is buffered."""

DEFAULT_POLICY = "poise"
DEFAULT_PORT = 7717
LISTEN_PORT = 7718
DASHBOARD_PORT = 7719
DASHBOARD_LISTEN_PORT = 7720
