"""Object bodies that are unique and can be generated again for comparison."""

import hashlib
import random

MIB = 1 << 20


def content(length, seed):
    """`length` bytes that depend on `seed` alone."""
    return random.Random(seed).randbytes(length)


def small_objects(count):
    """Keys and bodies of many small objects: nested names, sizes from 0 bytes to some KiB."""
    for number in range(count):
        yield f"many/{number % 7}/object-{number:05}.bin", content(number * 37 % 4096, f"small {number}")


def write_large_file(path, length, seed=1):
    """Writes `length` bytes to `path` and returns their SHA-256."""
    digest = hashlib.sha256()
    with open(path, "wb") as file:
        for block in range(length // MIB):
            piece = content(MIB, f"{seed} {block}")
            digest.update(piece)
            file.write(piece)
    return digest.hexdigest()


def sha256_of(stream):
    digest = hashlib.sha256()
    while piece := stream.read(MIB):
        digest.update(piece)
    return digest.hexdigest()
