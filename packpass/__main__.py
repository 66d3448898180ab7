"""``python -m packpass``."""

import sys

from packpass._cli import main

if __name__ == "__main__":
    sys.exit(main())
