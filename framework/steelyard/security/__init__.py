"""Who may call, and how both sides know whom they speak to: credentials, identities, tokens, rules. Nothing here opens
a connection or decides when it is asked; ``wire`` and ``filter`` do."""

from .certificate import identity_of_certificate, identity_of_grpc, identity_of_process
from .credentials import Credentials, checked_credentials
from .tls import Pems, Tls
from .watched import Source, Watched

__all__ = [
    "Credentials",
    "Pems",
    "Source",
    "Tls",
    "Watched",
    "checked_credentials",
    "identity_of_certificate",
    "identity_of_grpc",
    "identity_of_process",
]
