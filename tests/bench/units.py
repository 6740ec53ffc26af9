"""Sizes in bytes."""

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30
