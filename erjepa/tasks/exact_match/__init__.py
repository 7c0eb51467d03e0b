"""Exact match, for any pairs: an answer is right if it is the target."""
