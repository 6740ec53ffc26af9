"""Pages of ListObjectsV2, one after the other."""

import re

from store import BUCKET

SHOWN = re.compile(rb"<Contents>|<CommonPrefixes>")
NEXT = re.compile(rb"<NextContinuationToken>([^<]*)<")


def listed(store, connection, prefix, delimiter="", bucket=BUCKET):
    """Reads all pages of a prefix; returns the number of keys and common prefixes that they contained."""
    query, shown = [("list-type", "2"), ("prefix", prefix), ("max-keys", "1000")], 0
    if delimiter:
        query.append(("delimiter", delimiter))
    token = []
    while True:
        _, page = store.call("GET", f"/{bucket}", query + token, over=connection)
        shown += len(SHOWN.findall(page))
        further = NEXT.search(page)
        if not further:
            return shown
        token = [("continuation-token", further.group(1).decode())]
