"""Where a value that nobody should see is found: in files and in answers, plain and encoded."""

import base64
from collections.abc import Iterator
from pathlib import Path


def leaks(value: str, folder: Path, *answers: bytes) -> list[str]:
    """The files under a folder, and the answers by number, that hold the value."""
    forms = list(_forms(value.encode()))
    found = {f"answer {number}": content for number, content in enumerate(answers)}
    found |= {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return [name for name, content in found.items() if any(form in content for form in forms)]


def _forms(content: bytes) -> Iterator[bytes]:
    """As it is, in hexadecimal digits, and in base64 at any place of a longer text."""
    yield content
    yield content.hex().encode()
    yield content.hex().upper().encode()
    for before in range(3):
        encoded = base64.b64encode(bytes(before) + content)
        yield encoded[4 if before else 0 : -4]
