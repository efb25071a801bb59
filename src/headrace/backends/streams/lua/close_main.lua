-- Empty a window and give nothing out any more. ARGV: run id, at, queue, how long this may take. Answers the floor and all deliveries.
local queue = ARGV[3]
empty(queue)
call('SADD', base .. ':Q', queue)
call('HSET', key('m', queue), 'mode', 'c', 'until', whole(real + tonumber(ARGV[4])), 'look', '0', 'full', '0', 'at', '')
local found = {}
for _, id in ipairs(call('HKEYS', key('h', queue))) do
    table.insert(found, delivery(queue, id))
end
return {'OK', floor, found}
