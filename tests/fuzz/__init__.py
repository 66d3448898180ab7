"""Random programs of every kind that packpass rewrites, and of their mixtures, against eager. ::

    python -m tests.fuzz --minutes 30 --workers 2 --family mixtures --seed 0

A family makes a program from a seed and says what became of it. Families: ``loops`` (`tests.loops.generate`),
``shifts`` (`tests.shifts.at_random`), ``padding`` and ``mixtures`` (shifts of a declared row before, between
and behind loops over its documents).
"""
