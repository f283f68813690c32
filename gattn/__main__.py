"""The command as a module: `python -m gattn`."""

import sys

from gattn.cli.command import main

sys.exit(main())
