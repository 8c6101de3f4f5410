"""The economy task: a household decides each month how much to work and how much of its means to spend."""
