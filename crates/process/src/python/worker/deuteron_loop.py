"""The asyncio loop of a model whose `execute` or `is_ready` is a coroutine: one loop, in a thread of its own."""

import _thread
import asyncio
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


def _loop():
    global loop
    with lock:
        if loop is None:
            loop = asyncio.new_event_loop()
            asyncio.set_event_loop(loop)
            threading.Thread(target=loop.run_forever, daemon=True).start()
    return loop


def run(coroutine):
    """Runs a coroutine, and waits for what it returns."""
    return asyncio.run_coroutine_threadsafe(coroutine, _loop()).result()


def start(coroutine, states):
    """Runs a coroutine without a waiter. The requests of these senders fail if it does."""
    future = asyncio.run_coroutine_threadsafe(_guard(coroutine, states), _loop())
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
