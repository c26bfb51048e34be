"""Which certificate a broker must have: one by its fingerprint, or any of a public authority."""

import hashlib
import hmac
import ssl

from chappie_bridge.wire.pairing import CA, OPEN


def pinned(pin: str) -> ssl.SSLContext:
    """`pin` as in `wire.pairing`.  With a fingerprint the handshake proves that the server has the key, and
    `same` must be asked whose key that is before anything is sent."""
    context = ssl.create_default_context()
    if pin != CA:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


def same(connection: ssl.SSLObject | ssl.SSLSocket | None, pin: str) -> bool:
    """Has the server of a finished handshake the certificate of `pin`?  Without TLS: is none expected?"""
    if pin in (CA, OPEN) or connection is None:
        return pin in (CA, OPEN)
    shown = hashlib.sha256(connection.getpeercert(binary_form=True) or b"").hexdigest()
    return hmac.compare_digest(f"sha256:{shown}", pin)
