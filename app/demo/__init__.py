"""A real fleet on this machine alone: two workers and a head on loopback, a real model, nothing configured."""
