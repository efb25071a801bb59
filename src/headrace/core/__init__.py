"""What every room shares: settings, names, ids, time, events, batching. Stores are reached through the seam only."""
