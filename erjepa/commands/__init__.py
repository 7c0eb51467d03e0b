"""The subcommands of ``erjepa``, a module each, whose ``main(arguments)`` is the command.

What takes long to import is imported once arguments are read, so that help and errors of
arguments come at once.
"""
