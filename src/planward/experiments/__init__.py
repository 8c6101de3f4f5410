"""Experiments compared: what Git revisions and DVC experiments hold, and how their models differ."""
