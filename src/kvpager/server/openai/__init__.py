"""The routes under /v1 that OpenAI's clients know."""
