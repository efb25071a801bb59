"""Policy: what to do and when. The core speaks to stores only through the waist, and to time only through a Clock."""
