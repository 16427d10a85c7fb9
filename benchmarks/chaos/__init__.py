"""Runs that are killed on purpose, in real processes, and a judge of what is left (`make chaos`, docs/faults.md)."""
