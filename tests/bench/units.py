"""Sizes in bytes."""

MB = 1_000_000
KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30
