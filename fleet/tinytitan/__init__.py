"""TinyTitan as a runtime: its log, its installs, how it is started. Nothing of this was run on a Mac."""
