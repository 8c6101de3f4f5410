"""Verdicts on completions from anywhere: a file of lines in, verdicts, tables, tests and a page out."""
