"""Attacks on runs, files and inputs: ``python -m tests.campaign --minutes 20``.

Every attack is tried many times; moments, places and damage are drawn from a seed. A try passes if
the results equal those of an undisturbed run, or if the input is refused with a message that names
the file, line or key. Anything else is lost, and its number reproduces it.
"""
