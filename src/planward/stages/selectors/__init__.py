"""Stages of the selectors track."""
