"""Models behind an OpenAI-compatible API: requests, stored answers, limits."""
