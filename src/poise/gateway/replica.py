"""Former name of `poise_serve.replica`."""

import sys

from poise_serve.replica import *  # noqa: F403
from poise_serve.replica import main

if __name__ == "__main__":
    sys.exit(main())
