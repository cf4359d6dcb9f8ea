"""Runs real clients against a running server: tritonclient over HTTP and gRPC, sync and asyncio.

    python clients.py --http HOST:PORT --grpc HOST:PORT [--only NAME]

Prints `ok NAME`, `skipped NAME: reason` or `FAILED NAME: reason` for each check, and at the end
`N passed, M failed`; exits 1 if any failed or none passed. `--only` keeps the checks whose name
contains NAME. `checks/` holds the checks; `checks/__init__.py` lists the models that they expect.
"""

import argparse
import faulthandler
import os
import socket
import sys
import time
import traceback

os.environ["no_proxy"] = os.environ["NO_PROXY"] = "*"  # gRPC would ask a proxy of the environment

from checks import registry
from checks import status, answers, classification, rpc, load, models, configuration  # noqa: F401
from checks import refusals, refusals_http, refusals_grpc  # noqa: F401

RUN_SECONDS_MAX = 600


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--http", required=True, metavar="HOST:PORT")
    parser.add_argument("--grpc", required=True, metavar="HOST:PORT")
    parser.add_argument("--only", default="", metavar="NAME", help="checks whose name contains it")
    parser.add_argument("--verbose", action="store_true", help="tracebacks, and seconds of each check")
    return parser.parse_args()


def refused(address):
    """The reason for having no answer at `address`, or None."""
    host, port = address.rsplit(":", 1)
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except OSError as error:
        return f"no server at {address}: {error}"
    return None


def run(name, function, server, verbose):
    """True if the check passed; None if the server lacks its subject."""
    begin = time.monotonic()
    try:
        function(server)
    except registry.Skipped as reason:
        print(f"skipped {name}: {reason}", flush=True)
        return None
    except Exception as error:
        print(f"FAILED {name}: {registry.reason(error)}", flush=True)
        if verbose:
            traceback.print_exc()
        return False
    took = f" {time.monotonic() - begin:.2f} s" if verbose else ""
    print(f"ok {name}{took}", flush=True)
    return True


def main():
    options = arguments()
    faulthandler.dump_traceback_later(RUN_SECONDS_MAX, exit=True)
    for address in (options.http, options.grpc):
        if reason := refused(address):
            print(f"FAILED connect: {reason}\n0 passed, 1 failed")
            return 1

    checks = {name: check for name, check in registry.CHECKS.items() if options.only in name}
    with registry.Server(options.http, options.grpc) as server:
        outcomes = [run(*check, server, options.verbose) for check in checks.items()]
    passed, failed = outcomes.count(True), outcomes.count(False)
    print(f"{passed} passed, {failed} failed")
    return 0 if passed and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
