"""Planward: a reproducible pipeline that post-trains language models to plan."""

__version__ = "0.1.0"
