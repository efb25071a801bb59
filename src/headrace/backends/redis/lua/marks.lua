-- How long a job that has left is remembered, for an insert that is repeated.
local MARKED = 24 * 3600 * 1000000
