"""Recommend bundles that nobody has bought yet."""

__version__ = "0.1.0"
