"""`python -m riverrun` is the command `riverrun`."""

import sys

from .tools.main import main

if __name__ == "__main__":
    sys.exit(main())
