"""Stages on hosted and served models."""
