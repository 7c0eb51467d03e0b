"""Questions that people asked a search engine, and short answers."""
