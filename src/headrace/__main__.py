"""``python -m headrace``: the command line."""

from headrace.cli.__main__ import main

if __name__ == "__main__":
    main()
