"""Linear algebra on the last two axes: each is a formula of letters, with everything in front of them kept."""

from __future__ import annotations

from collections.abc import Sequence

from packpass.semantics.call import Call
from packpass.semantics.meaning import Entry, Meaning, Traits, meaning, same_size
from packpass.semantics.products import formula

FAMILY = "matrices"
# Operands, results, and the arguments that must hold matrices for which the operation does not fail: the identity
# is one, for every operation here.
_TABLE: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    **dict.fromkeys(("linalg_inv", "inverse"), (("...mn",), ("...nm",), ("A", "input"))),
    "linalg_inv_ex": (("...mn",), ("...nm", "..."), ("A",)),
    **dict.fromkeys(("linalg_cholesky", "cholesky", "cholesky_inverse"), (("...mn",), ("...mn",), ("input",))),
    "linalg_cholesky_ex": (("...mn",), ("...mn", "..."), ("input",)),
    "cholesky_solve": (("...mk", "...mn"), ("...mk",), ("input2",)),
    **dict.fromkeys(("linalg_det", "det", "logdet"), (("...mn",), ("...",), ("A", "input"))),
    **dict.fromkeys(("linalg_slogdet", "slogdet"), (("...mn",), ("...", "..."), ("A", "input"))),
    **dict.fromkeys(("linalg_matrix_exp", "matrix_exp"), (("...mn",), ("...mn",), ("input",))),
    **dict.fromkeys(("linalg_matrix_power", "matrix_power"), (("...mn",), ("...mn",), ("input",))),
    **dict.fromkeys(("linalg_pinv", "pinverse"), (("...mn",), ("...nm",), ("input",))),
    **dict.fromkeys(("linalg_eig", "linalg_eigh"), (("...mn",), ("...k", "...mk"), ("input", "A"))),
    **dict.fromkeys(("linalg_eigvals", "linalg_eigvalsh", "linalg_svdvals"), (("...mn",), ("...k",), ("input", "A"))),
    **dict.fromkeys(("linalg_svd", "svd"), (("...mn",), ("...ma", "...k", "...bc"), ("input", "A"))),
    **dict.fromkeys(("linalg_qr", "qr"), (("...mn",), ("...ma", "...bn"), ("input", "A"))),
    "linalg_lu": (("...mn",), ("...pq", "...ma", "...bn"), ("A",)),
    "linalg_lu_factor": (("...mn",), ("...mn", "...k"), ("A",)),
    "linalg_lu_factor_ex": (("...mn",), ("...mn", "...k", "..."), ("A",)),
    "linalg_ldl_factor": (("...mn",), ("...mn", "...k"), ("input",)),
    "linalg_ldl_factor_ex": (("...mn",), ("...mn", "...k", "..."), ("input",)),
    "linalg_solve_triangular": (("...mn", "...xy"), ("...xy",), ("input",)),
    "triangular_solve": (("...xy", "...mn"), ("...xy", "...mn"), ("A",)),
    **dict.fromkeys(("linalg_matrix_rank", "linalg_cond"), (("...mn",), ("...",), ("input",))),
    **dict.fromkeys(("linalg_householder_product", "orgqr"), (("...mn", "...k"), ("...mn",), ("input",))),
    "ormqr": (("...mn", "...k", "...xy"), ("...xy",), ("input",)),
    "linalg_vander": (("...n",), ("...nk",), ()),
    "cdist": (("...pm", "...rm"), ("...pr",), ()),
}


def _entry(inputs: Sequence[str], outputs: Sequence[str], fragile: Sequence[str]) -> Entry:
    def entry(call: Call) -> Meaning | None:
        if len(call.operands) != len(inputs) or len(call.results) != len(outputs):
            return None
        # Letters that a result shares with nothing in front of a matrix are told apart by it alone.
        kept = "pr" if call.op == "cdist" else ""
        mixed = "".join({c for word in (*inputs, *outputs) for c in word if c.isalpha()} - set(kept))
        traits = Traits(raises=frozenset(fragile) & {o.argument for o in call.operands}, reorders=True)
        found = [
            formula(call, inputs, out, mixed=mixed, family=FAMILY, traits=traits, item=item)
            for item, out in enumerate(outputs)
        ]
        return meaning(FAMILY, [f.relations[0] if f else None for f in found], traits)

    entry.__doc__ = f"``{', '.join(inputs)} -> {', '.join(outputs)}``: each matrix by itself."
    return entry


def _right_side(call: Call) -> tuple[tuple[str, str], str] | None:
    """Operands and result of a system of equations. A right side with one axis less than the matrices holds a vector
    for each of them if its sizes are theirs; else its sizes tell what it holds, and nothing is known."""
    matrices, right = (operand.value for operand in call.operands)
    if right.dim() == matrices.dim():
        return ("...mn", "...nk"), "...mk"
    if right.dim() == 1:
        return ("...mn", "n"), "...m"
    vectors = right.dim() == matrices.dim() - 1
    if vectors and all(same_size(a, b) for a, b in zip(matrices.shape, right.shape, strict=False)):
        return ("...mn", "...n"), "...m"
    return None


def _solve(call: Call) -> Meaning | None:
    """...mn, ...nk -> ...mk; with a vector for each matrix ...mn, ...n -> ...m"""
    if len(call.operands) != 2 or len(call.results) != 1:
        return None
    found = _right_side(call)
    if found is None:
        return None
    traits = Traits(raises=frozenset({call.operands[0].argument}), reorders=True)
    return formula(call, *found, mixed="mnk", family=FAMILY, traits=traits)


def _solve_ex(call: Call) -> Meaning | None:
    """The same, with a number for every matrix that says whether it has an inverse."""
    if len(call.operands) != 2 or len(call.results) != 2:
        return None
    sides = _right_side(call)
    if sides is None:
        return None
    inputs, solution = sides
    traits = Traits(raises=frozenset({call.operands[0].argument}), reorders=True)
    found = [
        formula(call, inputs, out, mixed="mnk", family=FAMILY, traits=traits, item=item)
        for item, out in enumerate((solution, "..."))
    ]
    return meaning(FAMILY, [f.relations[0] if f else None for f in found], traits)


ENTRIES: dict[str, Entry] = {
    **{op: _entry(*row) for op, row in _TABLE.items()},
    "linalg_solve": _solve,
    "linalg_solve_ex": _solve_ex,
}
