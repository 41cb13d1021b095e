"""The serving side: Provider."""

from .provider import Provider

__all__ = ["Provider"]
