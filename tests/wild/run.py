"""``python -m tests.wild.run GROUP [CASE ...]``: the cases of one file, in this process; a line of JSON each."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import logging
import os
import sys
import traceback
import warnings

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.dont_write_bytecode = True


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.wild.run", description=__doc__)
    parser.add_argument("group")
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--trace", action="store_true", help="print tracebacks")
    arguments = parser.parse_args()
    import torch

    from tests.wild import measure
    from tests.wild.case import CASES

    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    importlib.import_module(f"tests.wild.cases_{arguments.group}")
    for case in CASES.values():
        if case.group != arguments.group or (arguments.cases and case.name not in arguments.cases):
            continue
        try:
            outcome = measure.run(case)
        except Exception as error:  # the package cannot be imported, or eager fails: said as such
            if arguments.trace:
                traceback.print_exc()
            outcome = measure.Outcome(case.name, case.package, error=f"eager: {type(error).__name__}: {error}"[:1500])
        print("wild: " + json.dumps(dataclasses.asdict(outcome)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
