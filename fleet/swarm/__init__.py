"""Models on every machine: what the engine does with fleet/node, the part that runs on nodes."""
