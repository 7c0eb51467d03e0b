"""Spider: questions about databases, and SQL queries that answer them."""
