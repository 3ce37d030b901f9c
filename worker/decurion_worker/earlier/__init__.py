"""What a run takes from an earlier one: which of its results still hold, and how they get into the new log."""

from decurion_worker.earlier.select import Races, Seen, Selection, select
from decurion_worker.earlier.source import Earlier, Read, Taking, read_earlier, taking_of

__all__ = ["Earlier", "Races", "Read", "Seen", "Selection", "Taking", "read_earlier", "select", "taking_of"]
