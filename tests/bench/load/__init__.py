"""Clients of low cost, and observers of a server while they run."""
