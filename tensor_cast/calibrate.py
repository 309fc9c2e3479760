"""``python -m tensor_cast.calibrate``: see ``tensor_cast.commands.calibrate``."""

import sys

from tensor_cast.commands.calibrate import main

if __name__ == "__main__":
    sys.exit(main())
