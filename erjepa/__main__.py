"""``python -m erjepa`` is the command ``erjepa``."""

import sys

from erjepa.commands import main

if __name__ == "__main__":
    sys.exit(main())
