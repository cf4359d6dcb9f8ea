"""Importing it makes a program that fails end, and one that hangs: the thread of a stream of tritonclient would keep the
interpreter for ever, and with it the test that waits for its output.
"""

import faulthandler
import os
import sys
import traceback

SECONDS_MAX = 300
"""None of these programs takes a tenth of it, by itself."""


def end(*failure):
    traceback.print_exception(*failure)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


sys.excepthook = end
faulthandler.dump_traceback_later(SECONDS_MAX, exit=True)
