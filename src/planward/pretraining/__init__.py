"""Training of the shipped base model and of its adapters."""
