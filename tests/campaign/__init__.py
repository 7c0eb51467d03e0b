"""Attacks on runs, files and inputs: ``python -m tests.campaign --minutes 20``.

Each kind of attack is tried many times, with random moments, places and damage that follow
from a seed. What it left must be what an unharmed project leaves, or be refused in words that
name the file, the line or the key. Anything else is lost, and its number repeats it.
"""
