"""``python -m packpass``."""

import sys

from packpass.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
