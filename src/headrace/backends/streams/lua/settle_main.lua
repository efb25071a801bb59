-- Deliveries that are over leave the window, if they are still what they were, or cannot be read. ARGV: run id, at, queue, pairs of id and epoch.
local queue = ARGV[3]
local ids, entries = {}, {}
for i = 4, #ARGV, 2 do
    local packed = call('HGET', key('h', queue), ARGV[i])
    if packed then
        local epoch, _, band, entry = unpacked(packed)
        if epoch == ARGV[i + 1] then
            entries[band] = entries[band] or {}
            table.insert(entries[band], entry)
        end
        if not epoch or epoch == ARGV[i + 1] then
            table.insert(ids, ARGV[i])
        end
    end
end
for band, some in pairs(entries) do
    local line = stream(queue, band)
    many('XDEL', line, some)
    for i = 1, #some, 1000 do
        call('XACK', line, GROUP, unpack(some, i, math.min(i + 999, #some)))
    end
end
if #ids > 0 then
    many('HDEL', key('h', queue), ids)
    many('ZREM', key('l', queue), ids)
end
return {'OK'}
