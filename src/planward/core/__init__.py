"""Records, runs, verdicts, files, paths and the task protocol: what every layer shares."""
