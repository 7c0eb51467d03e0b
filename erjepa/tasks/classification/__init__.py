"""Texts and the labels that they have, one of the options in the prompt."""
