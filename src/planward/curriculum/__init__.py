"""Difficulty buckets, training sets, the training schedule and adaptive samplers."""
