"""The certificate of the link's port: made once, told by its fingerprint.  Listens nowhere."""

import hashlib
import ssl
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from chappie_bridge.wire.pairing import CA

from .state import StateDirectory

CERTIFICATE, KEY = "link-certificate.pem", "link-key.pem"
"""Files of the state directory."""

LASTS = timedelta(days=20 * 365)
"""Devices know it by its fingerprint: a new one would mean to pair all of them again."""


class Chain(NamedTuple):
    """Paths of PEM files: the certificate with those above it, and its key."""

    certificate: Path
    key: Path


def own(state: StateDirectory, now: datetime) -> Chain:
    """The self-signed certificate of this state directory, made where there is none; the key is 0600.

    :raises StateUnwritable: it cannot be made.  :raises StateUnsafe: others may read the key."""
    if state.private(KEY) is None or state.private(CERTIFICATE) is None:
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "chappie-bridge")])
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + LASTS)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName("chappie-bridge")]), critical=False)
            .sign(key, hashes.SHA256())
        )
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        state.keep(KEY, private)
        state.keep(CERTIFICATE, certificate.public_bytes(Encoding.PEM))
    return Chain(state.path / CERTIFICATE, state.path / KEY)


def context(chain: Chain) -> ssl.SSLContext:
    """TLS 1.3 alone: all that links speaks it.  :raises OSError: a file is missing or is not what it says."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    made.load_cert_chain(chain.certificate, chain.key)
    return made


def pin(chain: Chain) -> str:
    """What a device compares: the fingerprint of a certificate that vouches for itself; `ca` for one of an
    authority, which is replaced every few weeks.  :raises ValueError: it is no certificate."""
    certificate = x509.load_pem_x509_certificates(chain.certificate.read_bytes())[0]
    if certificate.issuer != certificate.subject:
        return CA
    return f"sha256:{hashlib.sha256(certificate.public_bytes(Encoding.DER)).hexdigest()}"
