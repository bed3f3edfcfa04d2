"""Virtual devices, for benchmarks, tests and demos: each exists by being addressed."""

from laneway_driver.adapters.virtual.adapter import VirtualAdapter, factory

__all__ = ["VirtualAdapter", "factory"]
