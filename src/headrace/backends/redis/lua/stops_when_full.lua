-- Stops the script at once if the server's memory is full.
-- A server stops a script at its first command that may need memory, but never one that has written already. This is such a command, and
-- writes nothing.
call('ZADD', base .. ':-', 'XX', 0, '')
