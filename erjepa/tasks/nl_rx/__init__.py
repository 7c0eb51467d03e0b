"""NL-RX: descriptions of lines, and regular expressions that match them."""
