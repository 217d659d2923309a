"""One record of the log: its format (1 byte), the encoded event, a CRC-32 (4 bytes).

The checksum starts from the revision: the same bytes under another revision never match.
"""

from zlib import crc32

FORMAT = 2
"""The version of records, checkpoints and tables. Raise it when an older Poise could not read the new data; an older
one then refuses the log with E206. Every version up to this one is readable.

1: Poise 0.1. 2: compressed checkpoints, and events that 0.1 does not know.
"""

_FORMAT_BYTE = bytes([FORMAT])
_CHECKSUM_BYTES = 4
_LOW_32_BITS = 0xFFFF_FFFF


def seal(revision: int, event: bytes) -> bytes:
    body = _FORMAT_BYTE + event
    return body + crc32(body, revision & _LOW_32_BITS).to_bytes(_CHECKSUM_BYTES, "little")


def is_whole(revision: int, record: object) -> bool:
    """Whether this record was written under this revision, in whatever format."""
    return (
        isinstance(record, bytes)
        and len(record) > _CHECKSUM_BYTES
        and checksum(revision, record[:-_CHECKSUM_BYTES]) == int.from_bytes(record[-_CHECKSUM_BYTES:], "little")
    )


def is_readable(record: bytes) -> bool:
    """Whether a whole record has a format that this version reads."""
    return 1 <= record[0] <= FORMAT


def unseal(record: bytes) -> bytes:
    """The encoded event in a whole record."""
    return record[1:-_CHECKSUM_BYTES]


def checksum(revision: int, content: bytes) -> int:
    return crc32(content, revision & _LOW_32_BITS)
