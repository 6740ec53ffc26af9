"""What caches that everybody knows would have found of a sequence of reads: the best there can be, and the least recently used.

Reads are pairs of an object and its bytes; both answer with the bytes that were found, read by read."""

import heapq
from collections import OrderedDict

TOLD_PARTS = 20


def optimum(reads, capacity):
    """Belady's with bypass, which knows what comes: what is asked for last makes way, or is not taken in. The most hits there can
    be where all objects are of one size, and very near to it where they are not."""
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
            # What is behind the times was asked for since.
            if last in kept and due[last] == -when:
                used -= kept.pop(last)
    return found


def lru(reads, capacity):
    """What was read longest ago makes way."""
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
    """What came first stays."""
    kept, used, found = set(), 0, []
    for name, size in reads:
        found.append(size if name in kept else 0)
        if name not in kept and used + size <= capacity:
            kept.add(name)
            used += size
    return found


def told(passes, pages, capacity):
    """The bytes that a cache finds which is told what is read in passes and what again and again in no order: it fills a part with
    the former once and keeps the latter by LRU in the rest, and knows beforehand which part is best."""
    parts = (capacity * at // TOLD_PARTS for at in range(TOLD_PARTS + 1))
    return max(sum(never_evict(passes, part)) + sum(lru(pages, capacity - part)) for part in parts)


def ratio(cache, reads, capacity, first=0):
    """The share of bytes that a cache finds, from read number `first` on."""
    found = cache(reads, capacity)
    return sum(found[first:]) / max(1, sum(size for _, size in reads[first:]))
