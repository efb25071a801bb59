"""An app of a shop: orders, and the jobs that belong to them."""
