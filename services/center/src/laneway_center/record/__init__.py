"""Applies results, dead letters and heartbeats."""
