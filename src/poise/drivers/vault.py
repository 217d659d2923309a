"""Encrypts and decrypts the secrets of jobs with the keys of a home.

The file `secrets.key` of a home holds one key per line, 256 bits in hexadecimal digits, readable by its owner only. The
first key encrypts; all keys decrypt. The file is created with the first secret and read each time, so an added or
restored key takes effect at once.

An encrypted text is `ID.DATA`: eight digits that identify the key, and, in base64, a nonce and the AES-256-GCM
ciphertext. The tenant and the name of the secret are authenticated too: a text that is copied to another tenant's job,
or to another variable, does not decrypt.
"""

import base64
import binascii
import contextlib
import hashlib
import os
import secrets
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from poise.config import Home
from poise.errors import Fault, InputError, extra
from poise.model.secrets import Sealed, sealed

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES, NONCE_BYTES = 32, 12
CODE = "E215"


class Key(NamedTuple):
    """A key, with the digits that identify it."""

    id: str
    secret: bytes


class Vault:
    """Encrypts and decrypts with the keys of one file. It does not create the file for a home whose log is shared: all
    control planes need the same keys, so an operator creates and copies it.
    """

    def __init__(self, path: Path, *, shared: bool = False, in_use: Callable[[], Iterable[str]] = lambda: ()) -> None:
        """`in_use` returns the encrypted texts that are still needed: while there are any, no new key is created."""
        self.path = path
        self._shared = shared
        self._in_use = in_use
        self._missed: set[str] = set()

    @classmethod
    def of(cls, home: Home, in_use: Callable[[], Iterable[str]] = lambda: ()) -> "Vault":
        return cls(home.secrets_key, shared=home.store.exists(), in_use=in_use)

    def sealed(self, document: Any, tenant: str) -> Any:
        """Return a tenant's request with its secrets encrypted, if it has any. Raises `SpecError`, and as `seal`."""
        return sealed(document, partial(self.seal, tenant))

    def seal(self, tenant: str, name: str, value: str) -> Sealed:
        """Encrypt a tenant's secret of this name. Create a key if there is none. Raises `Fault` and `InputError`."""
        cipher_of = _cipher()
        key = self._ensure_keys()[0]
        nonce = secrets.token_bytes(NONCE_BYTES)
        data = cipher_of(key.secret).encrypt(nonce, value.encode(), _bound(tenant, name))
        return Sealed(f"{key.id}.{base64.b64encode(nonce + data).decode()}")

    def open(self, tenant: str, name: str, text: str) -> str:
        """Decrypt a text. Raises `Fault`, which names the missing key."""
        cipher_of = _cipher()
        from cryptography.exceptions import InvalidTag

        wanted, _, encoded = text.partition(".")
        keys = {key.id: key for key in self.keys()}
        if not encoded or wanted not in keys:
            raise Fault(
                f"the secret `{name}` is encrypted with key {wanted or 'none'}, which is missing",
                code=CODE,
                field=f"secrets.{name}",
                have=", ".join(keys) or "no key",
                hint=f"the operator adds the line of that key to `{self.path.name}` in the state directory",
            )
        try:
            data = base64.b64decode(encoded, validate=True)
            opened = cipher_of(keys[wanted].secret).decrypt(
                data[:NONCE_BYTES], data[NONCE_BYTES:], _bound(tenant, name)
            )
        except (InvalidTag, ValueError):
            what = f"the secret `{name}` is damaged, or was sealed for another tenant or name"
            raise Fault(what, code=CODE, field=f"secrets.{name}", hint="cancel the job and submit it again") from None
        return opened.decode()

    def missing(self, texts: Iterable[str]) -> list[str]:
        """Return keys of encrypted texts that are not in the file, each only once. Raises `Fault` as `keys`."""
        wanted = {text.partition(".")[0] for text in texts} - self._missed
        found = sorted(wanted - {key.id for key in self.keys()}) if wanted else []
        self._missed.update(found)
        return found

    def keys(self) -> list[Key]:
        """Return the keys of the file; none if it does not exist. Raises `Fault` for a malformed file."""
        try:
            mode, text = self.path.stat().st_mode, self.path.read_text(encoding="ascii")
        except FileNotFoundError:
            return []
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "not text"
            raise Fault(f"the keys of secrets cannot be read: {why}", code=CODE, field=str(self.path)) from None
        if mode & 0o077:
            what, hint = "others may read the keys of secrets", f"in the state directory: `chmod 600 {self.path.name}`"
            raise Fault(what, code=CODE, field=self.path.name, hint=hint)
        return [_key(line.strip(), self.path) for line in text.splitlines() if line.strip()]

    def _ensure_keys(self) -> list[Key]:
        """Return the keys; create the file atomically if it is missing. If two processes create it at once, one
        wins."""
        if keys := self.keys():
            return keys
        if self._shared:
            raise Fault(
                "there is no key for secrets, and all control planes that share the log need the same key",
                code=CODE,
                field=str(self.path),
                hint=f"(umask 077; openssl rand -hex {KEY_BYTES} > {self.path}), and copy it into their homes",
            )
        if any(self._in_use()):
            raise Fault(
                "the keys of secrets are gone, and unfinished jobs need them",
                code=CODE,
                field=self.path.name,
                hint="the operator puts the file back, or those jobs are canceled",
            )
        draft = self.path.with_suffix(f".{secrets.token_hex(4)}.new")
        try:
            with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(secrets.token_hex(KEY_BYTES) + "\n")
                file.flush()
                os.fsync(file.fileno())
            with contextlib.suppress(FileExistsError):
                os.link(draft, self.path)
        except OSError as error:
            what, hint = f"no key can be made: {error.strerror}", "`df -h`, `ls -ld`"
            raise Fault(what, code=CODE, field=str(self.path), hint=hint) from None
        finally:
            draft.unlink(missing_ok=True)
        if keys := self.keys():
            return keys
        raise Fault("the file of keys is empty", code=CODE, field=str(self.path), hint=f"rm {self.path}")


def _key(line: str, path: Path) -> Key:
    try:
        secret = binascii.unhexlify(line)
    except ValueError:
        secret = b""
    if len(secret) != KEY_BYTES:
        need, hint = f"{2 * KEY_BYTES} hexadecimal digits a line", "`openssl rand -hex 32` makes one"
        raise Fault("this is not a key for secrets", code=CODE, field=str(path), need=need, hint=hint)
    return Key(hashlib.sha256(b"poise secrets " + secret).hexdigest()[:8], secret)


def _bound(tenant: str, name: str) -> bytes:
    """Return the authenticated data. Neither part contains a zero byte."""
    return f"poise secret\0{tenant}\0{name}".encode()


def _cipher() -> "type[AESGCM]":
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ModuleNotFoundError:
        raise InputError("secrets need a library that is not installed", hint=extra("secrets")) from None
    return AESGCM
