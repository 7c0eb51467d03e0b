"""The subcommands of ``erjepa``: one module each, with a function ``main(arguments)``.

Slow imports happen inside ``main``, once the arguments are parsed, so that ``--help`` is fast.
"""
