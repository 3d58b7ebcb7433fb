"""Reading and writing files: atomic output, JSON, digests, and errors that name the file."""
