"""The codes of refusals: stable names for why a loop was left alone, each with one sentence.

``python -m packpass doctor --codes`` prints them. A test compares this list with the codes used in the sources.
"""

from __future__ import annotations

CODES: dict[str, str] = {
    # the loop is not one over documents, or not over all of them
    "no-segments": "the loop does not cut any tensor by boundaries",
    "no-effect": "the loop changes nothing that is seen after it",
    "partial-coverage": "the loop, or a slice in it, does not go over every document exactly once",
    "two-boundaries": "one body cuts tensors by two different sets of boundaries",
    "nested-loops": "a loop over documents inside a loop over documents",
    "boundary-dtype": "the boundaries are neither int32 nor int64",
    "boundaries-written": "the loop writes its own boundaries",
    # what the loop does besides cutting
    "index-as-number": "the document's number, a boundary or a length is used in a way that is not understood",
    "carried-state": "the body uses what an earlier document left behind",
    "leaked-local": "something of the last document is used after the loop",
    "try-block": "the loop is inside try, or a with that may swallow errors",
    "early-exit": "the loop can end before the last document",
    "skip-condition": "documents are skipped for another reason than being empty",
    "unequal-lengths": "sequences of different lengths are walked together",
    "outer-iterator": "the body advances an iterator from outside the loop",
    "outer-mutation": "the body changes a Python object from outside the loop",
    "outer-tensor-write": "the body changes an outer tensor other than at the document's own slots",
    "iterator-use": "the sequence of documents is advanced outside a plain for loop",
    "sequence-use": "the number of documents must be a constant for what is done with it",
    "host-read": "a tensor value is read on the host inside the loop",
    "graph-break": "the body contains something that Dynamo cannot trace",
    "body-not-traceable": "the body cannot be captured for a symbolic document",
    "frame-not-compiled": "a frame with a captured loop failed to compile; it runs as under stock torch.compile",
    "not-captured": "the loop was not traced twice, so that nothing can be proven about it",
    "not-generic": "two iterations of the loop do different things",
    "check": "the body checks something that has no vectorised form",
    # memory
    "aliasing": "tensors that the loop reads and writes share memory",
    "stale-view": "a view is used after the tensor it views was changed",
    "write-through-view": "a view, or what may be one, is changed in place",
    "partial-write": "only a part of a segment's other dimensions is assigned",
    "partial-store": "a part of a document that was computed on its own is changed in place",
    "point-read": "a slot written at a boundary is read again in the same iteration",
    # segments and their shapes
    "not-a-segment": "a slice does not lie between two neighbouring boundaries",
    "unknown-bounds": "a slice's bounds are not understood",
    "wrapping-slice": "a slice by a negative constant, which wraps around in short documents",
    "strided-slice": "a slice with a step over documents",
    "two-packed-dims": "two dimensions are cut by boundaries in one index",
    "dim-mismatch": "segments are combined along different packed dimensions",
    "length-mismatch": "parts of a document with different lengths are combined",
    "row-lengths": "rows of different lengths are cut by the same boundaries",
    "whole-row-operand": "a tensor with a packed dimension of its own meets a segment",
    "per-document-value": "a slot, or a row, is set to a value of the document in a way that has no rule yet",
    "list-append": "the list is not appended to once per document with a part of a packed row or one value",
    "list-use": "a list filled by the loop is used by something else than torch.cat, torch.stack or pad_sequence",
    "no-rule": "an op in the body has no rule for whole rows yet",
    # shifts along packed rows
    "no-fill": "what a shift opens at the row's end is not filled with one number",
    "look-ahead": "shifted tokens are only compared with something",
    "running-value": "what is shifted is a running sum, a sorted or a counted value, or goes into a running sum",
    "already-bounded": "the code treats the slots at boundaries itself",
    "unaligned-targets": "scores and targets of a loss are not cut from one row by the shift",
    "ambiguous-boundaries": "more than one input could be the boundaries",
    "ambiguous-fields": "inputs with well-known names have rows of different lengths",
    "ambiguous-rows": "several rows, which one set of boundaries could cut in more than one way",
    "not-boundaries": "an input with a well-known name cannot be boundaries",
    "boundaries-late": "the boundaries are not known where the shift is",
    "boundary-device": "the boundaries are on another device than the row",
    "source-written": "the shifted tensor is changed before the result is used",
    "autograd-function": "the shift is inside an autograd.Function",
    "sharded-row": "the row is sharded over a context-parallel group",
    "emit": "the whole-row form of an op failed; please report it",
}
