"""Hot tables: rows of the user's own that go after a while. Nothing here speaks SQL: stores do."""
