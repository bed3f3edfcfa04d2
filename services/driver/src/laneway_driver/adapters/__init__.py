"""Adapters for device protocols. They know `laneway_driver.port` and nothing of each other."""
