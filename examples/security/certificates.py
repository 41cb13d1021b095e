"""python -m examples.security.certificates FOLDER: a small authority, and certificates for three parties.

For a try and for tests. In production the platform makes them (cert-manager, Vault, SPIRE), and the authority's key is
on no machine that serves.
"""

import datetime
import ipaddress
import os
import sys
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

PARTIES = ("provider.bank.example", "desk.bank.example", "visitor.example")
LIFE = datetime.timedelta(days=1)


def write(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Whole or not at all, so that a process that runs never sees a half."""
    new = path.with_suffix(".new")
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
        file.write(content)
    new.replace(path)


def main(folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    now = datetime.datetime.now(datetime.UTC)
    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority_name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "an example's authority")])

    def certificate(name: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(authority_name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + LIFE)
        )

    authority = (
        certificate(authority_name, authority_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    write(folder / "ca.pem", authority.public_bytes(serialization.Encoding.PEM))
    for party in PARTIES:
        key = ec.generate_private_key(ec.SECP256R1())
        names: list[x509.GeneralName] = [x509.DNSName(party), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        signed = (
            certificate(x509.Name([]), key.public_key())
            .add_extension(x509.SubjectAlternativeName(names), critical=True)
            .sign(authority_key, hashes.SHA256())
        )
        secret = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        write(folder / f"{party}.key.pem", secret, 0o600)
        write(folder / f"{party}.pem", signed.public_bytes(serialization.Encoding.PEM))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
