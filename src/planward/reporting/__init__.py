"""Reporting: statistics, tables, figures and the page, all computed from stored predictions."""
