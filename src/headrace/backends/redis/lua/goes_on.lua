-- For scripts that must go on when the server's memory is full: those that end work, or free what it takes. A server stops
-- a script at its first command that may need memory, but never one that has written already; this writes nothing.
call('DEL', base .. ':-')
