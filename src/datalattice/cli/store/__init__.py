"""Commands on weaver stores: `lattice store`, `kv`, `log` and `weave`."""
