"""Figures and the HTML report: arrays in, pictures out."""

from bayeswise.report.displays import (
    BandDisplay,
    ConvergenceDisplay,
    CoverageDisplay,
    Display,
    PredictedDisplay,
    ReliabilityDisplay,
    SurfaceDisplay,
    UncertaintyErrorDisplay,
)
from bayeswise.report.html import Picture, Report, Section, Table, render, write_report

__all__ = [
    "BandDisplay",
    "ConvergenceDisplay",
    "CoverageDisplay",
    "Display",
    "Picture",
    "PredictedDisplay",
    "ReliabilityDisplay",
    "Report",
    "Section",
    "SurfaceDisplay",
    "Table",
    "UncertaintyErrorDisplay",
    "render",
    "write_report",
]
