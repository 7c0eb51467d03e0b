"""NQ-Open: questions to a search engine with short answers."""
