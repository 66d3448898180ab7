"""Loops over documents, for every pass that has to do with one: found, interpreted, and written as whole rows.

``find`` finds what capture marked, ``machine`` and the ``rules`` say what one document's iteration does in ``terms``,
``find.decide`` checks that every document's does the same, ``rewrite`` puts the terms of the whole row in its place.
`passes.vectorize_segments` does that to every loop; the passes for exchanges between ranks do it to loops whose
messages or collectives they have understood, and ask for boundaries, integers and names of calls alone elsewhere.
"""
