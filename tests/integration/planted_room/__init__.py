"""A trainer room without a framework, for the tests of `common.ranks`."""
