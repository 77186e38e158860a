"""`python -m gradlet` is the `gradlet` command."""

import sys

from gradlet.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
