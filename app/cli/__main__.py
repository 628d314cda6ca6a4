"""`python -m buddy.app.cli` is `buddy-tui`."""

import sys

from buddy.app.cli import main

sys.exit(main())
