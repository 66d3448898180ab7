"""Which tests are left to ``make test-all``: the fast tier (`make test`) has to end within 15 minutes on 2 cores.

A test that is slow by itself is marked where it stands. Here stand tests with many parameters, of which a share runs in
the fast tier, the first of every so many. Of loops and shifts, `make test-matrix` runs every program as well.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest

ONE_OF: dict[str, int] = {
    "capture/test_capture.py::test_refused_and_equal_to_eager": 2,
    "capture/test_degraded.py::test_a_loop_without_its_group_is_refused_where_tracing_stopped": 2,
    "capture/test_hooks.py::test_a_broken_group_compiles_as_stock": 3,
    "capture/test_left_loops.py::test_other_loops_stay": 2,
    "capture/test_refusals.py::test_a_module_called_passes_in_front_of_ours": 2,
    "capture/test_replay.py::test_equals_eager_in_one_graph": 2,
    "clients/test_isolate_models.py::test_every_document_is_as_if_alone": 5,
    "clients/test_isolate_models.py::test_loops_over_tokens": 2,
    "clients/test_llava.py::test_token_mult_prob_error": 3,
    "clients/test_mtp.py::test_packed_equals_one_by_one": 9,
    "clients/test_mtp.py::test_the_auxiliary_losses_are_scaled": 2,
    "clients/test_transformers.py::test_packed_equals_one_by_one": 4,
    "clients/test_transformers_padding.py::test_packs": 5,
    "fuzz/test_fuzz.py::test_short_run": 3,
    "layout/test_rules.py::test_kept": 2,
    "loops/test_carried.py::test_what_the_documents_leave": 2,
    "loops/test_constant_sizes.py::test_equals_eager": 2,
    "loops/test_contexts.py::test_bad_boundaries_are_eager_or_an_error": 5,
    "loops/test_contexts.py::test_compile_keywords": 4,
    "loops/test_contexts.py::test_grad_modes": 5,
    "loops/test_contexts.py::test_grad_modes_alternate": 3,
    "loops/test_contexts.py::test_same_size_other_boundaries": 3,
    "loops/test_contexts.py::test_without_symbolic_loops": 2,
    "loops/test_leave.py::test_equals_eager": 30,
    "loops/test_leave.py::test_is_refused_with_a_reason": 4,
    "loops/test_leave.py::test_through_inductor": 8,
    "loops/test_rewrite.py::test_cat_with_a_tail": 16,
    "loops/test_rewrite.py::test_equals_eager": 16,
    "loops/test_rewrite.py::test_is_rewritten": 12,
    "loops/test_rewrite.py::test_through_inductor": 11,
    "ops/test_compiled.py::test_one_graph_is_right_for_rows_of_every_length": 2,
    "ops/test_segment_reduce.py::test_reduce_dtypes": 3,
    "ops/test_segment_scan.py::test_dtypes": 5,
    "passes/test_constants_in_cats.py::test_equals_eager": 3,
    "passes/test_documents.py::test_rewritten_and_equal": 4,
    "passes/test_documents.py::test_through_aot_autograd": 4,
    "passes/test_eliminate_padding.py::test_dynamic_shapes_need_one_graph": 2,
    "passes/test_eliminate_padding.py::test_padding_anywhere": 3,
    "passes/test_eliminate_padding.py::test_rewrites": 3,
    "passes/test_eliminate_padding_limits.py::test_refuses": 2,
    "passes/test_eliminate_padding_ops.py::test_passes": 2,
    "passes/test_eliminate_padding_partners.py::test_rewrites": 2,
    "passes/test_eliminate_padding_programs.py::test_refuses": 2,
    "passes/test_eliminate_padding_programs.py::test_rewrites": 2,
    "passes/test_fitting.py::test_as_eager": 3,
    "passes/test_fitting.py::test_rewritten": 2,
    "passes/test_fitting.py::test_through_inductor": 7,
    "passes/test_fuse_all_to_all_loops.py::test_leaves_alone": 2,
    "passes/test_fuse_all_to_all_loops.py::test_leaves_alone_hard": 4,
    "passes/test_fuse_all_to_all_loops.py::test_rewrites": 3,
    "passes/test_fuse_all_to_all_loops.py::test_rewrites_hard": 5,
    "passes/test_fuse_all_to_all_straight.py::test_rewrites": 2,
    "passes/test_fuse_boundary_exchange.py::test_every_rank_makes_the_same_call": 3,
    "passes/test_fuse_boundary_exchange.py::test_refused_on_every_rank": 6,
    "passes/test_isolate.py::test_every_document_is_as_if_alone": 2,
    "passes/test_isolate_carried.py::test_is_not_taken_for_such_a_loop": 3,
    "passes/test_isolate_carried.py::test_state_begins_anew_at_documents": 3,
    "passes/test_isolate_chunks.py::test_code_that_goes_by_how_long_the_row_is_stays": 2,
    "passes/test_isolate_chunks.py::test_documents_lie_in_rows_of_chunks": 3,
    "passes/test_isolate_memory.py::test_what_is_written_in_place_is_part_of_it": 3,
    "passes/test_isolate_neutral.py::test_every_document_is_as_if_alone": 3,
    "passes/test_isolate_neutral.py::test_with_inductor": 3,
    "passes/test_isolate_rows.py::test_what_is_no_work_on_single_tokens_is_right_or_refused": 2,
    "passes/test_losses.py::test_left_alone": 2,
    "passes/test_losses.py::test_rewritten_and_equal": 2,
    "passes/test_orders.py::test_left_alone": 2,
    "passes/test_orders.py::test_rewritten_and_equal": 6,
    "passes/test_orders.py::test_through_aot_autograd": 2,
    "passes/test_padded_rows.py::test_rewritten": 2,
    "passes/test_padded_rows.py::test_through_inductor": 3,
    "passes/test_places.py::test_left_alone": 2,
    "passes/test_places.py::test_rewritten_and_equal": 6,
    "passes/test_places.py::test_rewritten_and_equal_with_nan": 2,
    "passes/test_places.py::test_through_aot_autograd": 2,
    "passes/test_tokenwise.py::test_left_alone": 2,
    "passes/test_tokenwise.py::test_rewritten_and_equal": 8,
    "passes/test_unrolled.py::test_rewritten": 2,
    "passes/test_unrolled.py::test_several_loops": 2,
    "perf/test_cp_ranks.py::test_cp_to_hp_and_back_by_definition": 6,
    "perf/test_cp_ranks.py::test_rolls_by_definition": 2,
    "semantics/test_op_programs.py::test_leaves_alone": 3,
    "semantics/test_op_programs.py::test_rewrites": 6,
    "shifts/test_leave.py::test_is_what_it_was": 4,
    "shifts/test_rewrite.py::test_equals_documents_one_by_one": 8,
    "shifts/test_rewrite.py::test_is_reported": 4,
}


def mark_slow(items: Iterable[Any]) -> None:
    """Of each test above, mark all but the first of every so many."""
    met = Counter[str]()
    for item in items:
        name = re.sub(r"\[.*", "", item.nodeid.removeprefix("tests/"), flags=re.DOTALL)
        every = ONE_OF.get(name)
        if every is None or item.get_closest_marker("slow"):
            continue
        if met[name] % every:
            item.add_marker(pytest.mark.slow)
        met[name] += 1
