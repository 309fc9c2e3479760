"""``python -m tensor_cast.validate``: see ``tensor_cast.commands.validate``."""

import sys

from tensor_cast.commands.validate import main

if __name__ == "__main__":
    sys.exit(main())
