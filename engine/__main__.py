"""``python -m engine <verb>``: every experiment without a browser."""

import sys

from engine.cli import main

if __name__ == "__main__":
    sys.exit(main())
