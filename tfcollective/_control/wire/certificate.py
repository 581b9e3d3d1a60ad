"""The certificate of one coordinator: made when it starts, signed by itself, never written down, gone with it.

No authority vouches for it. A client knows it by its SHA-256, which the greeting covers with the job key.
"""

from __future__ import annotations

import datetime
import hashlib
import os
import ssl
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

# No client looks at these: the certificate lives as long as its process. Clocks of hosts may differ.
_BEFORE = datetime.timedelta(days=1)
_AFTER = datetime.timedelta(days=3650)


@dataclass(frozen=True)
class Certificate:
    """A certificate with its private key.

    Attributes:
        context: serves connections with it; TLS 1.3 only.
        fingerprint: its SHA-256.
    """

    context: ssl.SSLContext
    fingerprint: bytes

    @classmethod
    def make(cls) -> Certificate:
        """A new one. Raises OSError when the kernel gives no memory for it."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _signed(key)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.num_tickets = 0  # no connection is resumed
        # OpenSSL reads certificates from files only. This one is in memory: there may be no directory that can be
        # written, and nothing stays if the process is killed here.
        with os.fdopen(os.memfd_create("tfcollective-certificate"), "wb") as file:
            file.write(
                key.private_bytes(
                    serialization.Encoding.PEM,
                    serialization.PrivateFormat.PKCS8,
                    serialization.NoEncryption(),
                )
            )
            file.write(certificate.public_bytes(serialization.Encoding.PEM))
            file.flush()
            context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
        return cls(context, hashlib.sha256(certificate.public_bytes(serialization.Encoding.DER)).digest())


def _signed(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tfcollective coordinator")])
    now = datetime.datetime.now(datetime.timezone.utc)
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BEFORE)
        .not_valid_after(now + _AFTER)
        .sign(key, hashes.SHA256())
    )
