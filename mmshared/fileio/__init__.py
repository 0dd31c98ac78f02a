"""Reading files from archives, with any number of processes."""
