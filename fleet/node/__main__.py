"""`python -m fleet.node` (here) or `python3 FILE.pyz` (on a node): see command.py."""

from __future__ import annotations

import sys

from .command import main

if __name__ == "__main__":
    sys.exit(main())
