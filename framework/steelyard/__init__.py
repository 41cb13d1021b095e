"""Steelyard: RPC that sends each call to the right node of an unequal cluster."""

__version__ = "0.1.0"
