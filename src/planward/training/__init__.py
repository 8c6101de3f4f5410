"""Trainers: supervised fine-tuning and GRPO, on TRL."""
