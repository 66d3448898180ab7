"""Measurements of packpass: ``python -m perf`` (or ``make report``). One case per file in ``perf/cases``."""
