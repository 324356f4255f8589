"""Commands on paths of the root: get, put, history, show, diff, checkout and audit."""
