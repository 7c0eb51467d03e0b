"""One optimizer step: its passes, what they count, and whether they are finite."""
