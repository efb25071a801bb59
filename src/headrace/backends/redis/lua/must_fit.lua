-- For scripts that must not begin when the server's memory is full: it stops a script at its first command that may need memory,
-- but never one that has written already; this is such a command, and writes nothing.
call('ZADD', base .. ':-', 'XX', 0, '')
