"""The lattice's side of replication: its replica, its conversation and its comparisons."""
