"""A run, or several, for people who were not there: as one HTML file, as a table, and against each other."""

from engine.report.comparing import Comparison, compare
from engine.report.export import FORMATS, export
from engine.report.points import Point, points_of

__all__ = ["FORMATS", "Comparison", "Point", "compare", "export", "points_of"]
