"""Difficulty, buckets, training sets and the schedule."""
