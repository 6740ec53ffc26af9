"""Periodic sampling while the context is entered: memory, files, a metric."""

import threading
import time


class Sampler:
    """`samples` are pairs of a time (perf_counter) and the result of `look`."""

    def __init__(self, look, every_seconds):
        self.look, self.every, self.samples = look, every_seconds, []
        self.over, self.error = threading.Event(), None
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self):
        while not self.over.is_set():
            try:
                self.samples.append((time.perf_counter(), self.look()))
            except OSError:
                return  # The sampled process has ended.
            except Exception as error:
                self.error = error
                return
            self.over.wait(self.every)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()

    def last(self):
        return self.samples[-1][1] if self.samples else None

    def between(self, begin, end):
        """The samples of that period."""
        return [value for at, value in self.samples if begin <= at <= end]
