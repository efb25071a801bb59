"""The dashboard: pages for people, on top of the admin API."""
