"""Tasks, one package each: problems, prompts, verdicts and rewards. Trainers know none of them by name."""
