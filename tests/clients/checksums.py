"""CRCs of S3 that Python's library lacks, bit-reflected and table-driven, as big-endian bytes."""

import zlib


def _table(polynomial):
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (polynomial if value & 1 else 0)
        table.append(value)
    return table


def _crc(data, table, width):
    crc = ones = (1 << width) - 1
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    return (crc ^ ones).to_bytes(width // 8, "big")


CASTAGNOLI = _table(0x82F63B78)
NVME = _table(0x9A6C9329AC4BC9B5)


def crc32(data):
    return zlib.crc32(data).to_bytes(4, "big")


def crc32c(data):
    return _crc(data, CASTAGNOLI, 32)


def crc64nvme(data):
    return _crc(data, NVME, 64)
