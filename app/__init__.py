"""What a person or a script meets: the command line, the headless run and the cockpit."""
