"""The certificate authority of a home, by which other machines trust its control plane.

A control plane that listens beyond its machine speaks TLS. Its certificate is signed by the home's own authority, which
is made at the first such start and readable by its owner only. Clients know the authority by its fingerprint, the
SHA-256 of its certificate, which is part of the address. So no external authority is needed, and a certificate of any
other authority is refused.
"""

import datetime
import ipaddress
import os
import secrets
import socket
import ssl
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil

from poise.config import Home
from poise.errors import InputError, extra

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ModuleNotFoundError:
    raise InputError("listening for other machines needs a library for TLS", hint=extra("listen")) from None

LASTS = datetime.timedelta(days=3650)
"""Other machines know the fingerprint, so the authority is long-lived, as a running control plane may be."""

BEFORE = datetime.timedelta(days=1)
"""Allowance for clocks of other machines that are behind."""


def names_here(listen: str) -> list[str]:
    """Return every name and address by which other machines may know this one, the preferred one first."""
    own = [socket.gethostname(), socket.getfqdn()]
    first = own[:1] if _is_any(listen) else [listen]
    found = [
        address.address.partition("%")[0]
        for addresses in psutil.net_if_addrs().values()
        for address in addresses
        if address.family in (socket.AF_INET, socket.AF_INET6)
    ]
    return list(dict.fromkeys([*first, *own, "localhost", *found]))


def ensure_authority(home: Home) -> bytes:
    """Return the certificate of the home's authority (PEM); create it if it is missing."""
    certificate, key = home.authority / "authority.pem", home.authority / "authority.key"
    try:
        home.authority.mkdir(mode=0o700, exist_ok=True)
        if not certificate.exists():  # written last: if it exists, its key is complete
            secret = ec.generate_private_key(ec.SECP256R1())
            name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"Poise of {socket.gethostname()}"[:64])])
            built = _builder(name, name, secret.public_key(), secret.public_key())
            built = built.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            built = built.add_extension(_usage(signs=True), critical=True)
            _write(key, _private(secret))
            _write(certificate, built.sign(secret, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        return certificate.read_bytes()
    except OSError as error:
        raise InputError(
            f"the authority cannot be created: {error.strerror}", field=str(home.authority), hint="`df -h`, `ls -ld`"
        ) from None


def server_context(home: Home, names: Iterable[str], of: str = "server") -> ssl.SSLContext:
    """Return a TLS context for listening, with a new certificate for these names, since the machine's addresses may
    have changed. Each program that listens stores it under its own name.

    The server sends no session tickets. Python does not lock a connection between threads: a client that reads in one
    thread and writes in another blocks in the write, if the other thread reads a ticket at that moment. One WebSocket
    in a thousand got no answer. No client of Poise resumes sessions, so tickets are only work.
    """
    authority = x509.load_pem_x509_certificate(ensure_authority(home))
    signer = serialization.load_pem_private_key((home.authority / "authority.key").read_bytes(), None)
    if not isinstance(signer, ec.EllipticCurvePrivateKey):
        raise InputError("this is not the key of an authority", field=str(home.authority), hint="`rm -r` makes another")
    secret = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Poise")])
    built = _builder(name, authority.subject, secret.public_key(), signer.public_key())
    built = built.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    built = built.add_extension(_usage(signs=False), critical=True)
    built = built.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    built = built.add_extension(x509.SubjectAlternativeName(map(_named, names)), critical=False)
    signed = built.sign(signer, hashes.SHA256())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0
    content = _private(secret) + signed.public_bytes(serialization.Encoding.PEM)
    _write(home.authority / f"{of}.pem", content, context.load_cert_chain)
    return context


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, signer: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BEFORE)
        .not_valid_after(now + LASTS)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer), critical=False)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    """Return key usage: an authority only signs certificates; a server certificate only authenticates."""
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _named(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _is_any(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write(path: Path, content: bytes, read: Callable[[Path], None] = lambda _: None) -> None:
    """Write a file atomically, readable by its owner only from the start. Other processes may write the same file:
    `read` gets this process's content.
    """
    draft = path.with_suffix(f".{secrets.token_hex(4)}.new")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
        read(draft)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
