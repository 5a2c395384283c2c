"""Quarterdeck's engine: machines, models, plans. It knows no user interface."""
