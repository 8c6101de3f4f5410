"""The household environment: simulator, utility, prompts, and the parsing of decisions."""
