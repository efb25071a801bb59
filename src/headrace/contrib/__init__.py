"""Headrace in web frameworks. Each module here needs its framework; nothing else of Headrace imports one."""
