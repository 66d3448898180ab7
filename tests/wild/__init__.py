"""Model code as it is found: functions and modules of public packages, imported unmodified, through packpass.

``make test-wild`` installs the packages (pinned by the extra ``wild``) beside the environment, runs every case in a
process per package and prints what became of each. A case is declared in one of the files ``cases_*.py``.
"""
