"""The paper's tables and figures, one TOML each in `tables`: run, measured, set beside the published ones.

plan       what a TOML asks for: rows, scenarios, seeds
sources    the data of a scenario: published files, or splits made here
jobs       one training and its measurements, in a place named by everything that decides the numbers
pool       many of them, in turn or side by side, with time left
results    measurements gathered beside the published figures
pages, figures, writing   the same as Markdown, pictures and one HTML report
tuning     search for settings, on validation only
"""
