"""Naive shifts along packed rows: programs that must be rewritten, and look-alikes that must not be touched."""
