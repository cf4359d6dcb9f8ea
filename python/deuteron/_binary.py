"""Path of the program."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import sys
import sysconfig


def find_binary() -> str:
    """The path of the program that was installed with this module.

    Raises :class:`FileNotFoundError` without one, with the searched folders.
    """
    name = "deuteron" + (sysconfig.get_config_var("EXE") or "")
    beside = pathlib.Path(__file__).absolute().parent.parent
    folders = [
        pathlib.Path(sysconfig.get_path("scripts")),
        pathlib.Path(sysconfig.get_path("scripts", sysconfig.get_preferred_scheme("user"))
                     if sys.version_info >= (3, 10) else sysconfig.get_path("scripts", "posix_user")),
        # `pip install --target FOLDER`.
        beside / "bin",
    ]
    # Another prefix: .../lib/python3.12/site-packages belongs to .../bin.
    folders += [parent / "bin" for parent in list(beside.parents)[1:4]]
    for folder in folders:
        if (folder / name).is_file():
            return str(folder / name)
    looked = ", ".join(str(folder) for folder in dict.fromkeys(folders))
    raise FileNotFoundError(f"the program {name!r} is in none of {looked}: install the wheel `deuteron` again")


def environment() -> dict[str, str]:
    """The variables that the program is started with.

    It finds ONNX Runtime in the environment that it lies in. Where the module lies elsewhere (``pip install --target``), the
    library of the package that this Python would import is named.
    """
    variables = dict(os.environ)
    if "ORT_DYLIB_PATH" not in variables:
        spec = importlib.util.find_spec("onnxruntime")
        for folder in (spec.submodule_search_locations or []) if spec else []:
            libraries = sorted(pathlib.Path(folder, "capi").glob("libonnxruntime.so*"))
            if libraries:
                variables["ORT_DYLIB_PATH"] = str(libraries[-1])
    return variables
