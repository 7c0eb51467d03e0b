"""Questions about databases, and the SQL that answers them."""
