"""Clients that cost little, and what watches a server while they run."""
