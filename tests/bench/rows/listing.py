"""LIST in pages of a thousand: keys, common prefixes, keys under a prefix; then keys again after nine of ten
were deleted.

The result is the number of listed entries for each CPU second of the server: keys or common prefixes, each of
which is one line to the client. A common prefix requires a seek past all of its keys, which a key does not,
so the target for prefixes is four fifths of the target for keys; the other two targets are four fifths of the
result for keys in this run. The keys left by deleting are listed repeatedly until as many were listed as
before, so that the costs that follow a restart (blocks to read, compaction of the deleted keys) are divided
by the same number."""

from bench import NO_COMPACTION
from load.keepalive import AnswerError
from load.listing import listed
from load.result import Load

KEYS_PER_SECOND = 400_000
WITHIN = 0.8
PREFIX_WALKS = 200
KEPT_OF = 10


def listing(bench):
    """Each row after a restart; deleting comes last. RocksDB continues to compact after filling, so the row
    waits for its end."""
    store, names = bench.million(NO_COMPACTION)
    bench.rest()
    folders = sorted({name.rpartition("/")[0] + "/" for name in names})
    keys = row(bench, "list", len(names), KEYS_PER_SECOND, lambda over: listed(store, over, "m/"))
    store.restart()
    bench.rest()
    walks = PREFIX_WALKS * len(folders)
    each = lambda over: sum(listed(store, over, "m/", "/") for _ in range(PREFIX_WALKS))
    row(bench, "list-prefixes", walks, WITHIN * KEYS_PER_SECOND, each)
    store.restart()
    bench.rest()
    under = lambda over: sum(listed(store, over, folder, "/") for folder in folders)
    row(bench, "list-under-prefixes", len(names), WITHIN * keys, under)
    doomed = [name for at, name in enumerate(names) if at % KEPT_OF]
    bench.report.say(f"deleting {len(doomed):,} keys")
    store.delete(doomed)
    store.filled.clear()
    store.restart()
    left = KEPT_OF * (len(names) - len(doomed))
    again = lambda over: sum(listed(store, over, "m/") for _ in range(KEPT_OF))
    row(bench, "list-after-deletes", left, WITHIN * keys, again)


def row(bench, name, expected, target, walk):
    """Listed entries per CPU second."""
    bench.report.say(f"{name}: {expected:,} to be shown")
    with bench.current.connection() as over:
        load = bench.spent(lambda: Load.counted(lambda: walk(over)))
    if load.requests != expected:
        raise AnswerError(f"{name}: {load.requests:,} shown of {expected:,}")
    rate = load.requests / load.cpu
    bench.report.at_least(name, rate, "shown/CPU s", target, f"{load.cpu:.2f} CPU s")
    return rate
