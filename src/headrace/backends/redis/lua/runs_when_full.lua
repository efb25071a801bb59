-- Lets the script run although the server's memory is full, because it ends work or frees memory.
-- A server stops a script at its first command that may need memory, but never one that has written already. This command counts as a
-- write, and writes nothing.
call('DEL', base .. ':-')
