"""Who may call, and how both sides know whom they speak to: credentials, identities, tokens, rules. Nothing here opens
a connection or decides when it is asked; ``wire`` and ``filter`` do."""

from .access import Access, Rule, allow, deny
from .authenticator import Authenticator, bearer_token
from .bearer import AUTHORIZATION, Bearer
from .certificate import identity_of_certificate, identity_of_grpc, identity_of_process
from .credentials import Credentials, checked_credentials
from .json_web_token import JwtVerifier
from .service_token import HIDDEN, TOKEN_TAG, checked_tokens, fits
from .tls import Pems, Tls
from .watched import Source, Watched

__all__ = [
    "AUTHORIZATION",
    "HIDDEN",
    "TOKEN_TAG",
    "Access",
    "Authenticator",
    "Bearer",
    "Credentials",
    "JwtVerifier",
    "Pems",
    "Rule",
    "Source",
    "Tls",
    "Watched",
    "allow",
    "bearer_token",
    "checked_credentials",
    "checked_tokens",
    "deny",
    "fits",
    "identity_of_certificate",
    "identity_of_grpc",
    "identity_of_process",
]
