"""Consumer groups: membership state machines, committed offsets, and the coordinator that keeps them."""
