"""Part of Laneway."""
