"""What every room shares: settings, names, ids, time, events, batching. The core reaches stores only through the
seam."""
