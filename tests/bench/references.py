"""Hits of well-known caches for a sequence of reads: the optimum, and least recently used.

Reads are pairs of an object and its bytes; each cache returns the bytes that were hits, read by read."""

import heapq
from collections import OrderedDict

TOLD_PARTS = 20


def optimum(reads, capacity):
    """Belady's algorithm with bypass, which knows all future reads: the object whose next read is furthest is
    evicted, or is not admitted. The maximum of hits if all objects have one size, and very near to it if not.
    """
    upcoming, follows = {}, [float("inf")] * len(reads)
    for at in range(len(reads) - 1, -1, -1):
        follows[at] = upcoming.get(reads[at][0], float("inf"))
        upcoming[reads[at][0]] = at
    kept, due, latest, used, found = {}, {}, [], 0, []
    for at, (name, size) in enumerate(reads):
        found.append(size if name in kept else 0)
        due[name] = follows[at]
        if name not in kept and follows[at] < float("inf"):
            kept[name], used = size, used + size
        if name in kept:
            heapq.heappush(latest, (-follows[at], name))
        while used > capacity:
            when, last = heapq.heappop(latest)
            # An outdated entry: the object was read since.
            if last in kept and due[last] == -when:
                used -= kept.pop(last)
    return found


def lru(reads, capacity):
    """Evicts the object whose last read is longest ago."""
    kept, used, found = OrderedDict(), 0, []
    for name, size in reads:
        found.append(size if name in kept else 0)
        if name in kept:
            kept.move_to_end(name)
            continue
        kept[name], used = size, used + size
        while used > capacity:
            used -= kept.popitem(last=False)[1]
    return found


def never_evict(reads, capacity):
    """Never evicts: the first objects stay."""
    kept, used, found = set(), 0, []
    for name, size in reads:
        found.append(size if name in kept else 0)
        if name not in kept and used + size <= capacity:
            kept.add(name)
            used += size
    return found


def class_aware(passes, pages, capacity):
    """The hit bytes of a cache that knows which objects are read in passes and which repeatedly in random
    order: it fills a part with the former once, keeps the latter by LRU in the rest, and knows in advance
    which division is best."""
    parts = (capacity * at // TOLD_PARTS for at in range(TOLD_PARTS + 1))
    return max(sum(never_evict(passes, part)) + sum(lru(pages, capacity - part)) for part in parts)


def ratio(cache, reads, capacity, first=0):
    """The fraction of bytes that are hits, from read number `first` on."""
    found = cache(reads, capacity)
    return sum(found[first:]) / max(1, sum(size for _, size in reads[first:]))
