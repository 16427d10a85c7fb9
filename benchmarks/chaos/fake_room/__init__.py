"""A trainer room without a framework: two processes that wait for each other, around the arithmetic of the fakes."""
