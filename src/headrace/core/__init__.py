"""What every room shares: settings and names, checks of what users give, clocks and durations, events, alerts and
counters, batches of calls, patience with a store that is away. Stores are reached through the seam only."""
