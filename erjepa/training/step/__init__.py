"""Parts of an optimizer step: its passes, checks for non-finite values, and measurements."""
