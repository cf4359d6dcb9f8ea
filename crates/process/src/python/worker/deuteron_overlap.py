"""Several batches at once: coroutines on the event loop, or functions in threads (`execute_concurrency`).

The main thread reads the batches, of which the server has no more here at once than the bound. Both kinds mark them as
begun in the order in which they came: if the process ends, the server runs those behind the last one again.
"""

import asyncio
import os
import sys
import threading
from _queue import SimpleQueue
from contextvars import ContextVar

import deuteron_channel as channel
import deuteron_loop
import deuteron_worker
from deuteron_channel import frame

# The first request of the batch that a thread or task runs, and whether it has others. Tasks and coroutines that the model
# starts from there have a copy. Only a number: the batch must not live as long as they do.
current = ContextVar("deuteron_batch", default=(0, False))


def set_current(requests):
    """The calling thread or task runs a batch."""
    current.set((requests[0]._row[0], len(requests) > 1) if requests else (0, False))


def give_up():
    """A batch would never be answered. The process is of no use without that."""
    sys.excepthook(*sys.exc_info())
    os._exit(1)


class Coroutines:
    """Runs `async def execute` on the event loop. A batch that awaits makes room for the next one."""

    def __init__(self, process):
        self.process = process
        self.loop = deuteron_loop.get()
        # The loop itself does not keep them.
        self.tasks = set()

    parent = staticmethod(current.get)

    def handle_batch(self, taken):
        """Starts a batch. In the main thread."""
        self.loop.call_soon_threadsafe(self._start, taken)

    def _start(self, taken):
        task = self.loop.create_task(self._run(taken))
        self.tasks.add(task)
        task.add_done_callback(self._handle_done)
        # Behind the first step of the task: then it has ended, or it awaits something.
        self.loop.call_soon(self._announce, task, taken.number)

    def _announce(self, task, number):
        if not task.done():
            self.process.main.send(frame(channel.AWAITS, number))

    async def _run(self, taken):
        process = self.process
        process.memory.begin(taken.number)
        set_current(taken.requests)
        answer = process.encode(taken.batch, taken.requests, await self._returned(taken.requests))
        process.send_answer(taken, answer)

    async def _returned(self, requests):
        try:
            returned = self.process.model.execute(requests[:])
            return await returned if deuteron_worker.is_coroutine(returned) else returned
        except BaseException as error:
            return deuteron_worker.ModelFailure(deuteron_worker.describe(error))

    def _handle_done(self, task):
        self.tasks.discard(task)
        try:
            task.result()
        except BaseException:
            give_up()

    def finish(self):
        """Waits for the batches that run."""
        asyncio.run_coroutine_threadsafe(self._wait(), self.loop).result()

    async def _wait(self):
        while self.tasks:
            await asyncio.wait(set(self.tasks))


class Threads:
    """Runs `execute` in threads, which are started when they are first needed."""

    def __init__(self, process, count):
        self.process = process
        self.count = count
        self.batches = SimpleQueue()
        self.threads = []
        # An item for each thread that takes the next batch.
        self.idle = []

    parent = staticmethod(current.get)

    def handle_batch(self, taken):
        """Hands a batch to a thread. In the main thread."""
        self.process.memory.begin(taken.number)
        self.batches.put(taken)
        try:
            self.idle.pop()
        except IndexError:
            if len(self.threads) < self.count:
                name = "execute-" + str(len(self.threads))
                thread = threading.Thread(target=self._serve, name=name, daemon=True)
                self.threads.append(thread)
                thread.start()

    def _serve(self):
        try:
            while True:
                taken = self.batches.get()
                if taken is None:
                    return
                self._run(taken)
                taken = None
        except BaseException:
            give_up()

    def _run(self, taken):
        process = self.process
        set_current(taken.requests)
        answer = process.encode(taken.batch, taken.requests, process.call_execute(taken.requests))
        # Before the answer: the next batch may come at once.
        self.idle.append(True)
        process.send_answer(taken, answer)

    def finish(self):
        """Waits for the batches that run."""
        for _ in self.threads:
            self.batches.put(None)
        for thread in self.threads:
            thread.join()


deuteron_worker.entries.add(Threads._serve.__code__)
