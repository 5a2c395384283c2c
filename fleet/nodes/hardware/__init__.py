"""What a machine is made of, read from the text of its own tools. One vendor a module; all pure and total:
whatever a tool printed, the answer is a record (or None), never an exception."""
