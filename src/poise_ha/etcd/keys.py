"""Key layout below a prefix, and its initialization."""

from poise.errors import Fault, newer
from poise.model.record import FORMAT
from poise_ha.etcd.link import EtcdLink, Members
from poise_ha.etcd.words import end_of, is_absent, put


class Keys:
    def __init__(self, prefix: str) -> None:
        root = prefix.encode() + b"/"
        self.format, self.written_by = root + b"about/format", root + b"about/written_by"
        self.term, self.who, self.renewed = root + b"lead/term", root + b"lead/who", root + b"lead/renewed"
        self.lead = (root + b"lead/", end_of(root + b"lead/"))
        self.first, self.last = root + b"first", root + b"last"
        self.probe = root + b"probe"
        self.logs, self.checkpoints, self._pieces = root + b"log/", root + b"checkpoint/", root + b"pieces/"

    def log(self, revision: int) -> bytes:
        """Return the key of the records that end with this revision."""
        return self.logs + b"%020d" % revision

    def checkpoint(self, revision: int) -> bytes:
        return self.checkpoints + b"%020d" % revision

    def pieces(self, key: bytes) -> bytes:
        """Return the prefix of the keys of its pieces, which sort like the keys themselves."""
        return self._pieces + key + b"/"

    def piece(self, key: bytes, number: int) -> bytes:
        return self.pieces(key) + b"%06d" % number


def revision_of(key: bytes) -> int:
    """Return the revision in the key of a log entry or a checkpoint."""
    return int(key.rpartition(b"/")[2])


def settle(link: EtcdLink, keys: Keys) -> None:
    """Write missing keys; raises `StoreNewer` if a newer Poise has written them."""
    link.ask(lambda members: _settle(members, keys))


async def _settle(members: Members, keys: Keys) -> None:
    made = str(FORMAT).encode()
    if not (found := await members.value(keys.format)):
        beginnings = ((keys.format, made), (keys.term, b"0"), (keys.who, b"{}"), (keys.first, b"1"), (keys.last, b"0"))
        await members.commit([is_absent(keys.format)], [put(*beginning) for beginning in beginnings])
        found = await members.value(keys.format)  # another process may have been first
    if not found.isdigit():
        raise Fault(f"`{members.name}` has other data under this prefix", code="E213", hint="another prefix")
    if int(found) > FORMAT:
        writer = (await members.value(keys.written_by)).decode()
        raise newer(f"the log has format {int(found)}; this version reads {FORMAT}", writer)
