"""What stages need, checked before they run: all faults at once, before a model is loaded.

A fault is one line: the key or file, what is wrong, and `; fix: ` with what to do. Nothing here changes a result, so no
stage depends on it: `planward.cli` checks a stage before it starts it.
"""
