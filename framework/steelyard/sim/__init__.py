"""The simulator: the very same balance and guard objects in virtual time, against fleets nobody has at hand."""

from .compare import Difference, Table, Verdict, judge
from .contender import contenders, everybody
from .ledger import page, rounded
from .ledger import read as read_ledger
from .measure import METRICS
from .picture import check_picture, draw
from .reading import SHIPPED, load_scenario, scenario_names, variants
from .report import notes_in, regenerate, rewrite
from .run import Job, Result, plan, run, run_all
from .scenario import Gate, Scenario
from .table import gate_rows, plain, rows

__all__ = [
    "METRICS",
    "SHIPPED",
    "Difference",
    "Gate",
    "Job",
    "Result",
    "Scenario",
    "Table",
    "Verdict",
    "check_picture",
    "contenders",
    "draw",
    "everybody",
    "gate_rows",
    "judge",
    "load_scenario",
    "notes_in",
    "page",
    "plain",
    "plan",
    "read_ledger",
    "regenerate",
    "rewrite",
    "rounded",
    "rows",
    "run",
    "run_all",
    "scenario_names",
    "variants",
]
