"""Descriptions of lines, and the regular expressions they mean."""
