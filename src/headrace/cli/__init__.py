"""The command line: a thin layer over the client. Nothing here is imported by the library."""
