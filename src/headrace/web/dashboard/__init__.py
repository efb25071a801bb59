"""The dashboard: pages for people, on top of the admin API. Nothing here changes a store by itself."""
