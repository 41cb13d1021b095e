"""The simulator: the very same balance and guard objects in virtual time, against fleets nobody has at hand."""

from .arrivals import Arrivals, draw_arrivals
from .call import Call, Ending
from .compare import Difference, Table, Verdict, judge
from .contender import contenders, everybody
from .ledger import page, rounded
from .ledger import read as read_ledger
from .measure import METRICS
from .picture import check_picture, draw
from .progress import Step, in_words, progress
from .reading import SHIPPED, load_scenario, scenario_names, variants
from .report import notes_in, regenerate, rewrite
from .run import Job, Result, plan, run, run_all
from .sampling import stream
from .scenario import Gate, Scenario
from .server import Server
from .table import gate_rows, plain, rows
from .world import World

__all__ = [
    "METRICS",
    "SHIPPED",
    "Arrivals",
    "Call",
    "Difference",
    "Ending",
    "Gate",
    "Job",
    "Result",
    "Scenario",
    "Server",
    "Step",
    "Table",
    "Verdict",
    "World",
    "check_picture",
    "contenders",
    "draw",
    "draw_arrivals",
    "everybody",
    "gate_rows",
    "in_words",
    "judge",
    "load_scenario",
    "notes_in",
    "page",
    "plain",
    "plan",
    "progress",
    "read_ledger",
    "regenerate",
    "rewrite",
    "rounded",
    "rows",
    "run",
    "run_all",
    "scenario_names",
    "stream",
    "variants",
]
