"""``python -m deuteron`` is the command ``deuteron``."""

import os
import sys

from ._binary import environment, find_binary

if __name__ == "__main__":
    binary = find_binary()
    os.execve(binary, [binary, *sys.argv[1:]], environment())
