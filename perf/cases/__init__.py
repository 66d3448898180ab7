"""One case per file; each registers itself with :func:`perf.registry.case`."""
