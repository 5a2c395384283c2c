"""One module a verb, each with `run(options) -> int`; the command line imports the one that it needs."""
