"""Log settings as tritonclient reads and changes them, over HTTP and over gRPC.

    python check.py --http HOST:PORT --grpc HOST:PORT

The server is started with --allow-log-settings=true and without a log file. Prints `ok NAME` for each check, exits 1 at
the first that fails.
"""

import argparse
import os

os.environ["no_proxy"] = os.environ["NO_PROXY"] = "*"

import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException

KEYS = ["log_error", "log_file", "log_format", "log_info", "log_verbose_level", "log_warning"]


def plain(settings):
    """The settings as a dictionary of values, whichever protocol they came by."""
    if isinstance(settings, dict):
        return settings
    value = lambda setting: getattr(setting, setting.WhichOneof("parameter_choice"))
    return {name: value(setting) for name, setting in settings.settings.items()}


def refused(call, text):
    try:
        call()
    except InferenceServerException as error:
        assert text in error.message(), error
    else:
        raise AssertionError(f"{text!r} was expected")


def check(client, other):
    before = plain(client.get_log_settings())
    assert sorted(before) == KEYS, before
    assert before["log_file"] == "" and before["log_info"] is True and before["log_verbose_level"] == 0, before
    changed = {"log_info": False, "log_verbose_level": 2, "log_format": "ISO8601"}
    after = plain(client.update_log_settings(changed))
    assert after == {**before, **changed}, after
    # The other protocol reads the same, and members that are not given stay.
    assert plain(other.get_log_settings()) == after
    assert plain(client.update_log_settings({"log_error": False})) == {**after, "log_error": False}
    refused(lambda: client.update_log_settings({"log_file": "x"}), "can not be updated through network protocol")
    refused(lambda: client.update_log_settings({"log_format": "fancy"}), "got: fancy")
    back = {name: value for name, value in before.items() if name != "log_file"}
    assert plain(client.update_log_settings(back)) == before


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--http", required=True)
    parser.add_argument("--grpc", required=True)
    arguments = parser.parse_args()
    http = triton_http.InferenceServerClient(arguments.http)
    grpc = triton_grpc.InferenceServerClient(arguments.grpc)
    assert "logging" in http.get_server_metadata()["extensions"]
    assert "logging" in grpc.get_server_metadata().extensions
    for name, client, other in [("http", http, grpc), ("grpc", grpc, http)]:
        check(client, other)
        print(f"ok {name}")


main()
