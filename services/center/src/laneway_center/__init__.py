"""The center: accepts commands, dispatches them in order per lane, records what became of them."""

__version__ = "0.1.0"
