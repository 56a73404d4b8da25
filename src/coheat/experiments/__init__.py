"""The paper's tables and figures and our own, one TOML each in `tables`: run, beside what is published.

plan       what a TOML asks for: rows, scenarios, seeds
sources    the data of a scenario: published files, or splits and worlds made here
jobs       one training and its measurements, in a place named by everything that decides the numbers
results    measurements gathered beside the published figures
certainty  intervals of figures and of differences
kept       earlier results: how long trainings took, and rows to carry over
check      some of their rows trained afresh and compared
pages, figures, writing   the same as Markdown, pictures and one HTML report
tuning     search for settings, on validation only
"""
