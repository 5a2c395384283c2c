"""Drawing only: plain rows and cells in, strips of the terminal out."""
