"""Loading language models, decoding and scoring with shared prompt prefixes."""
