"""The command for reports."""
