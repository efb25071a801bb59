"""The admin API: what operators see and do, the same for the command line, HTTP and the dashboard. Nothing here prints,
or knows HTTP."""
