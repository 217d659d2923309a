"""Settings as records, and the paths in a home. Only the shell reads the environment."""

from pathlib import Path

import msgspec

from poise.errors import InputError


class Address(msgspec.Struct, frozen=True):
    """A control plane on another machine: its host and port, and the fingerprint of its certificate authority.

    >>> of = Address.parse("head:7718#" + 64 * "a")
    >>> str(of), of.port, of.text == "head:7718#" + 64 * "a"
    ('head:7718', 7718, True)
    """

    host: str
    port: int
    authority: str

    @classmethod
    def parse(cls, text: str, field: str = "POISE_ADDRESS") -> "Address":
        """Parse `HOST:PORT#FINGERPRINT`, as `poise up --listen` prints it. Raises InputError."""
        place, _, authority = text.strip().partition("#")
        found = _split_place(place)
        if found is None or len(authority) != 64 or not set(authority) <= set("0123456789abcdef"):
            wrong = (
                "this is no address" if found is None else "an address must end with the fingerprint of its authority"
            )
            raise InputError(
                wrong,
                field=field,
                need="HOST:PORT#FINGERPRINT",
                have=text[:200],
                hint=f"`export {field}=HOST:PORT#FINGERPRINT`; `poise status`, where the control plane runs, prints it",
            )
        return cls(*found, authority)

    @property
    def text(self) -> str:
        return f"{self}#{self.authority}"

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_place(text: str, field: str) -> tuple[str, int]:
    """Split `HOST:PORT`; the host may be an IPv6 address in brackets. Raises InputError.

    >>> parse_place("[::1]:7718", "--listen")
    ('::1', 7718)
    """
    found = _split_place(text)
    if found is None:
        raise InputError("this is no address", field=field, need="HOST:PORT", have=text[:200], hint="0.0.0.0:7718")
    return found


def _split_place(text: str) -> tuple[str, int] | None:
    host, _, port = text.rpartition(":")
    inner = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    is_place = _is_host(inner) and (":" not in inner or inner != host) and _is_port(port)
    return (inner, int(port)) if is_place else None


def _is_host(text: str) -> bool:
    """Return whether the name can be looked up: no part of it is empty, or longer than 63 bytes."""
    try:
        return bool(text.encode("idna"))
    except UnicodeError:
        return False


def _is_port(text: str) -> bool:
    return text.isdecimal() and text.isascii() and len(text) <= 5 and int(text) < 2**16


Door = Path | Address
"""How to reach a control plane: a socket of this machine, or an address of another one."""


class Home(msgspec.Struct, frozen=True):
    """`POISE_HOME`: everything Poise keeps on one machine. Nothing outside it is written.

    `elsewhere` is the socket of another user's control plane, or the address of one on another machine; then nothing of
    this home is used. `others` are the other control planes of a shared log.
    """

    root: Path
    elsewhere: Door | None = None
    others: tuple[Door, ...] = ()

    @property
    def lock(self) -> Path:
        """The lock of the control plane, with its process id."""
        return self.root / "lock"

    @property
    def token(self) -> Path:
        return self.root / "token"

    @property
    def secrets_key(self) -> Path:
        """The keys that encrypt the secrets of jobs (`drivers/vault.py`)."""
        return self.root / "secrets.key"

    @property
    def log(self) -> Path:
        return self.root / "log.db"

    @property
    def socket(self) -> Path:
        return self.elsewhere if isinstance(self.elsewhere, Path) else self.root / "poise.sock"

    @property
    def elsewhere_by(self) -> str:
        """The environment variable that selects the other control plane."""
        return "POISE_ADDRESS" if isinstance(self.elsewhere, Address) else "POISE_SOCKET"

    @property
    def authority(self) -> Path:
        """The certificate authority of this home's control plane for other machines, and what it signed."""
        return self.root / "authority"

    @property
    def doors(self) -> tuple[Door, ...]:
        """All control planes of the home; at most one of them leads."""
        first = self.elsewhere or self.socket
        return (first, *(other for other in self.others if other != first))

    @property
    def addresses(self) -> str:
        """The value of POISE_ADDRESS for control planes on other machines; empty if the control plane is local."""
        return ",".join(door.text for door in self.doors if isinstance(door, Address)) if self.elsewhere else ""

    @property
    def store(self) -> Path:
        """The URL of the database that holds the log, if it is not `log`."""
        return self.root / "store"

    @property
    def options(self) -> Path:
        """The flags of `poise up` that later starts reuse."""
        return self.root / "options.json"

    @property
    def endpoint(self) -> Path:
        """The control plane's process id, port and version, written before it answers."""
        return self.root / "control.json"

    @property
    def dashboard(self) -> Path:
        """The lock of the dashboard, with its process id."""
        return self.root / "dashboard"

    @property
    def dashboard_endpoint(self) -> Path:
        """The ports of the running dashboard."""
        return self.root / "dashboard.json"

    @property
    def dashboard_opener(self) -> Path:
        """A page that opens the dashboard by a one-time link, which so appears in no list of processes."""
        return self.root / "dashboard.html"

    @property
    def failure(self) -> Path:
        """Why the control plane could not start, if a person must act."""
        return self.root / "failure.json"

    @property
    def left(self) -> Path:
        """Exists after the control plane exited because it was idle: a caller with new work may restart it."""
        return self.root / "left"

    @property
    def stay(self) -> Path:
        """Exists from `poise up` to `poise down`: the control plane stays up without jobs, with the kept flags."""
        return self.root / "stay"

    @property
    def ssh(self) -> Path:
        """The folder with the key for sessions by ssh."""
        return self.root / "ssh"

    @property
    def supervisor(self) -> Path:
        """The lock of the supervisor, with its process id."""
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
        """The meeting points of the members of gangs."""
        return self.root / "gangs"

    @property
    def meetings(self) -> Path:
        """Messages between members of gangs on several machines, in a folder per job."""
        return self.root / "meetings"

    @property
    def values(self) -> Path:
        """Arguments and results of calls that are too large for a record, in a folder per job."""
        return self.root / "values"

    @property
    def registries(self) -> Path:
        """Credentials of registries of images, as `podman login --authfile` writes them, in a file per tenant."""
        return self.root / "registries"

    @property
    def checkpoints(self) -> Path:
        """Checkpoints of training that names no folder of its own, in a folder per job."""
        return self.root / "checkpoints"

    @property
    def fleet(self) -> Path:
        """The compiled declared fleet, if this home has one: its nodes are started instead of this machine's."""
        return self.root / "fleet.json"

    def substrate(self, name: str) -> Path:
        """The folder of the substrate of this name, whose machines are this home's nodes (`drivers/clusters.py`)."""
        return self.root / name

    @property
    def policy(self) -> Path:
        """The content of the policy file given to `poise up`: the file itself may change or be removed."""
        return self.root / "policy.json"

    @property
    def notifications(self) -> Path:
        """Targets of notifications, and commands for them; optional, written by hand."""
        return self.root / "notifications.yaml"

    @property
    def sign_in(self) -> Path:
        """The issuer whose accounts may sign in, and the rules for their groups; optional, written by hand."""
        return self.root / "sign-in.yaml"

    @property
    def signed_in(self) -> Path:
        """Tokens of sign-ins to other control planes, one file for each control plane."""
        return self.root / "signed-in"

    @property
    def intensity(self) -> Path:
        """Carbon intensity or price of electricity by hour; optional, written by hand."""
        return self.root / "intensity.yaml"

    @property
    def devices(self) -> Path:
        """Declared properties of this machine's devices; optional, written by hand."""
        return self.root / "devices.yaml"

    @property
    def profiles(self) -> Path:
        """Measured rates of this machine's devices."""
        return self.root / "profiles"

    @property
    def incidents(self) -> Path:
        """Incidents derived from the log up to some revision. It can be deleted, since the log has them all."""
        return self.root / "incidents"

    @property
    def series(self) -> Path:
        """The load history of each node, in a file of limited size per node."""
        return self.root / "series"

    @property
    def files(self) -> Path:
        """Files of jobs, sent by clients (`drivers/blobs.py`)."""
        return self.root / "files.db"

    @property
    def fetched(self) -> Path:
        """Files of jobs, fetched by nodes of this home. It can be deleted while no node fetches files."""
        return self.root / "fetched.db"

    @property
    def work(self) -> Path:
        """Copies of working trees, in a folder per job with a folder per attempt."""
        return self.root / "work"

    @property
    def environments(self) -> Path:
        """Python environments built from lock files."""
        return self.root / "environments"

    @property
    def services(self) -> Path:
        """Sockets on which replicas reach their gateway."""
        return self.root / "services"

    @property
    def logs(self) -> Path:
        """Standard output and error of every attempt."""
        return self.root / "logs"

    @property
    def traces(self) -> Path:
        """The exporter of traces: its lock, its position, and the socket on which gateways report requests to it."""
        return self.root / "traces"

    @property
    def shadow(self) -> Path:
        """Policies in shadow, their results, and the lock of the process of their simulated fleets."""
        return self.root / "shadow"

    @property
    def messages(self) -> Path:
        """The log messages of the control plane, the agent and the supervisor."""
        return self.root / "poise.log"


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach a running control plane. `address` is for other machines, if it listens to them."""

    pid: int
    port: int
    version: str
    agent: int = 0
    address: str = ""


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster whose machines are a home's nodes, as in `--on NAME=SUBSTRATE:ADDRESS`, and where the control plane
    should `listen` to its nodes. Without a `substrate`, `name` is the substrate. It `grows` if it gets machines on
    request. The name `local` stands for this machine.
    """

    name: str = ""
    substrate: str = ""
    address: str = ""
    listen: str
    grows: bool = False

    @property
    def driver(self) -> str:
        """The name of the substrate whose driver the cluster needs."""
        return self.substrate or self.name

    @property
    def on(self) -> str:
        """Return the value of `--on` that selects this cluster."""
        name = f"{self.name}={self.substrate}" if self.substrate else self.name
        return f"{name}:{self.address}" if self.address else name

    @property
    def title(self) -> str:
        """The display name of the cluster."""
        title = self.driver.capitalize()
        return f"{title} `{self.name}`" if self.substrate else title

    @property
    def is_here(self) -> bool:
        """Return whether this is not a cluster, but this machine."""
        return self.name == LOCAL


LOCAL = "local"
"""The name for this machine in place of a substrate: `poise up --on local --on slurm`."""

PAGE = 1000
"""Maximum number of nodes or jobs in one answer: the control plane does nothing else while it writes them."""

MAX_BODY = 4 * 2**20
"""Maximum bytes of one request or file; anything larger is refused before it is buffered."""

DEFAULT_POLICY = "poise"
DEFAULT_PORT = 7717
LISTEN_PORT = 7718
DASHBOARD_PORT = 7719
DASHBOARD_LISTEN_PORT = 7720
