"""Stages: one module a stage of dvc.yaml; files in, files out."""
