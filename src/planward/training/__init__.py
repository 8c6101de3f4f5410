"""Trainers on TRL: supervised fine-tuning and GRPO."""
