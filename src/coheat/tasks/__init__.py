"""Work in pieces that somebody else may do: in this process, in several, or on the machines of a cluster.

A `Task` is a piece of work whose results are files; `run_tasks` has a `Place` do many of them. What was done
is seen in the files and nowhere else, so a task that was lost with its machine is done again, or turns out to
be done already.
"""

from coheat.tasks.choosing import place_for
from coheat.tasks.places import Ended, Here, Place, Processes
from coheat.tasks.running import Display, Estimate, Follower, duration, run_tasks
from coheat.tasks.task import Task, TaskError

__all__ = [
    "Display",
    "Ended",
    "Estimate",
    "Follower",
    "Here",
    "Place",
    "Processes",
    "Task",
    "TaskError",
    "duration",
    "place_for",
    "run_tasks",
]
