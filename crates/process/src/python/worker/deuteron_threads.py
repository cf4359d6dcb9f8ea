"""The number of threads of libraries that read no variable: they count the cores of the machine.

ONNX Runtime is one. Its default is a thread for each core of the machine, each kept to one core, whatever the affinity and
the CPU limit of the process say. Where the process has fewer threads than that, sessions that say nothing get its number.
"""

import os
import sys


class PatchedLoader:
    """Loads a module with its own loader, and changes it then."""

    def __init__(self, loader, change):
        self.loader = loader
        self.change = change

    def __getattr__(self, name):
        return getattr(self.loader, name)

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module):
        # Other code sees the module's own loader.
        module.__spec__.loader = module.__loader__ = self.loader
        self.loader.exec_module(module)
        self.change(module)


class PatchingFinder:
    """Finds modules that are changed once they are imported, once each, as the other finders do."""

    def __init__(self, changes):
        self.changes = changes

    def find_spec(self, name, path=None, target=None):
        if name not in self.changes:
            return None
        change = self.changes.pop(name)
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = find and find(name, path, target)
            if spec is not None:
                if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                    spec.loader = PatchedLoader(spec.loader, change)
                return spec
        return None


def limit_sessions(module, count):
    """Sessions without a number of threads get `count`. A version that is built otherwise stays as it is."""
    session, options_type = getattr(module, "InferenceSession", None), getattr(module, "SessionOptions", None)
    if session is None or options_type is None:
        return
    initialize = session.__init__

    def __init__(self, path_or_bytes, sess_options=None, *args, **kwargs):
        if sess_options is None:
            sess_options = options_type()
        # The threads of all sessions together have a number of their own.
        if sess_options.intra_op_num_threads == 0 and sess_options.use_per_session_threads:
            sess_options.intra_op_num_threads = count
        initialize(self, path_or_bytes, sess_options, *args, **kwargs)

    __init__.__doc__ = initialize.__doc__
    session.__init__ = __init__


def limit(count):
    """Before the model is imported: libraries start at most `count` threads by themselves."""
    if count and count < (os.cpu_count() or 1):
        sys.meta_path.insert(0, PatchingFinder({"onnxruntime": lambda module: limit_sessions(module, count)}))
