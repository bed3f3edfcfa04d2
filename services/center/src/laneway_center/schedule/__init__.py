"""Deadlines, absence checks and driver liveness."""
