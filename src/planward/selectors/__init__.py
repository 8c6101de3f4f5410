"""Selectors of worked examples: embeddings, beam search, the pointer network and its training."""
