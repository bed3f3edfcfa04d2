"""Checks what happened against the rules: the tables and the devices' journals, after the fact or on a live system."""
