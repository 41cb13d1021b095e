"""A token per service, as Dubbo's ``token`` parameter: the provider writes it into its node, whoever finds the node in
the registry sends it back.

It says "I come by way of the registry", and not who I am: it keeps out those who dial an address that they have from
somewhere else, past rules and balancing. Whoever reads the registry has it; a secret from them it is not.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Sequence

from steelyard.errors import ConfigError

TOKEN_TAG = "token"
"""The node's tag and the call's attachment, both Dubbo's."""
HIDDEN = "***"
_LEAST_CHARACTERS = 8


def checked_tokens(name: str, value: object) -> tuple[str, ...]:
    """The tokens that are accepted, the one to publish first: True makes one up, text is one, a sequence several (for
    the time in which consumers still hold the last one). Nothing for None and False. Raises ConfigError, which shows
    none of them."""
    if value is None or value is False:
        return ()
    if value is True:
        return (secrets.token_urlsafe(24),)
    given = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, Sequence) else ()
    if not given or not all(_is_token(each) for each in given):
        raise ConfigError(
            f"{name}: True, or texts of at least {_LEAST_CHARACTERS} letters, digits and - _ . ~, the newest first"
        )
    return given


def fits(tokens: Sequence[str], given: str | None) -> bool:
    """In constant time, whatever is given."""
    answer = (given or "").encode("utf-8", "replace")
    found = False
    for token in tokens:
        found |= hmac.compare_digest(token.encode(), answer)
    return found


def _is_token(value: object) -> bool:
    return (
        isinstance(value, str)
        and len(value) >= _LEAST_CHARACTERS
        and value.isascii()
        and all(letter.isalnum() or letter in "-_.~" for letter in value)
    )
