-- What a server is to a client that does not know. ARGV: run id and floor, '', a name for what is in its memory, if it has none. Answers the run id
-- of the client's connection, the name, the floor or 0, and whether it was in charge.
local run = string.match(ARGV[1], '^%S+')
if not floor or general[2] ~= run then
    call('HSETNX', base .. ':G', 'life', ARGV[3])
end
return {'OK', run, call('HGET', base .. ':G', 'life') or '', general[1] or '0'}
