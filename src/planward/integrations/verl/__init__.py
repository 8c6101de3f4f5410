"""Train GRPO runs with verl on a Ray cluster: export, launch, rewards."""
