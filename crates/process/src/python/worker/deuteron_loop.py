"""The asyncio loop of a model whose `execute` or `is_ready` is a coroutine: one loop, in a thread of its own."""

import _thread
import asyncio
import os
import sys
import threading
import traceback

import deuteron_channel as channel

# Of deuteron_worker.
LOG_ERROR = 2

loop = None
# Coroutines without a waiter; the loop itself does not keep them.
running = set()
# The main thread and one that asks `is_ready` may be the first at once.
lock = _thread.allocate_lock()


def get():
    """The loop, which is started when it is first needed."""
    global loop
    with lock:
        if loop is None:
            loop = asyncio.new_event_loop()
            asyncio.set_event_loop(loop)
            threading.Thread(target=_serve, daemon=True).start()
    return loop


def _serve():
    try:
        loop.run_forever()
    except BaseException:
        # A task of the model has ended the loop, as `sys.exit` does: no coroutine would ever go on.
        sys.excepthook(*sys.exc_info())
        os._exit(1)


def run(coroutine):
    """Runs a coroutine, and waits for what it returns."""
    returned, error = asyncio.run_coroutine_threadsafe(_settle(coroutine), get()).result()
    if error is None:
        return returned
    try:
        raise error
    finally:
        error = None


async def _settle(coroutine):
    # Nothing is raised in the task: SystemExit would end the loop.
    try:
        return await coroutine, None
    except BaseException as error:
        return None, error


def start(coroutine, states):
    """Runs a coroutine without a waiter. The requests of these senders fail if it does."""
    future = asyncio.run_coroutine_threadsafe(_guard(coroutine, states), get())
    running.add(future)
    future.add_done_callback(running.discard)


async def _guard(coroutine, states):
    try:
        await coroutine
    except BaseException as error:
        process = channel.process
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        process.log(LOG_ERROR, text, process.settings["model_file"], 0)
        from deuteron_worker import describe

        failure = process.failure_text(describe(error))
        for state in states:
            state.failure = failure


def stop():
    """Stops the loop before `finalize`."""
    if loop is not None:
        loop.call_soon_threadsafe(loop.stop)
