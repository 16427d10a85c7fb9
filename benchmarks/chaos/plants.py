"""Bugs that are planted on purpose, to see that the judge finds them: patches of the running driver, not of the product."""

VARIABLE = "CHAOS_PLANT"


def plant(name: str) -> None:
    """By name; nothing for the empty one."""
