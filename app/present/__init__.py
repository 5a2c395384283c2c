"""From the engine's records to what the screens show: pure functions of a Snapshot and the time.

The one place where bytes, seconds and fractions become words. Everything here is rounded on
purpose: a fleet where nothing happens gives equal rows, and equal rows are not written to the
terminal again. Knows no Textual, so that headless faces can use the same words.
"""
