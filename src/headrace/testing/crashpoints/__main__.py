"""``python -m headrace.testing.crashpoints``: the list of all crash points."""

import sys

from headrace.testing.crashpoints import listing

sys.stdout.write(listing())
