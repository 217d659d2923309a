"""Settings as records, and where things lie in a home. Reading the environment is a shell's job."""

from pathlib import Path

import msgspec


class Home(msgspec.Struct, frozen=True):
    """`POISE_HOME`: everything Poise keeps on one machine. Nothing outside it is written.

    With `elsewhere`, the socket of a control plane that somebody else shares, nothing of this home is used. `others`
    are sockets of control planes of which one leads when that of this home does not.
    """

    root: Path
    elsewhere: Path | None = None
    others: tuple[Path, ...] = ()

    @property
    def lock(self) -> Path:
        """Held by the control plane; holds the process id of its holder."""
        return self.root / "lock"

    @property
    def token(self) -> Path:
        return self.root / "token"

    @property
    def log(self) -> Path:
        return self.root / "log.db"

    @property
    def socket(self) -> Path:
        return self.elsewhere or self.root / "poise.sock"

    @property
    def sockets(self) -> tuple[Path, ...]:
        """Of all control planes of which one leads."""
        return (self.socket, *(other for other in self.others if other != self.socket))

    @property
    def store(self) -> Path:
        """The URL of the database that holds the log, where `log` does not."""
        return self.root / "store"

    @property
    def endpoint(self) -> Path:
        """Written when the control plane is ready: its process id, port and version."""
        return self.root / "control.json"

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
        """There when a control plane that was started for as long as there is a job has been asked to stay."""
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

    @property
    def policy(self) -> Path:
        """What the policy file said that this home was brought up with: the file itself may change or go."""
        return self.root / "policy.json"

    @property
    def devices(self) -> Path:
        """What a person says of this machine's devices; written by hand, if at all."""
        return self.root / "devices.yaml"

    @property
    def profiles(self) -> Path:
        """What was measured of this machine's devices."""
        return self.root / "profiles"

    @property
    def series(self) -> Path:
        """How busy each node has been, a file of bounded size for each."""
        return self.root / "series"

    @property
    def services(self) -> Path:
        """Sockets at which replicas find their gateway."""
        return self.root / "services"

    @property
    def logs(self) -> Path:
        """Standard output and error of every attempt."""
        return self.root / "logs"

    @property
    def messages(self) -> Path:
        """What control plane, agent and supervisor have to say."""
        return self.root / "poise.log"


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach a running control plane."""

    pid: int
    port: int
    version: str
    agent: int = 0


MAX_BODY = 4 * 2**20
"""Bytes of one request or file; anything larger is refused before it is buffered."""

DEFAULT_PORT = 7717
