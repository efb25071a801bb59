-- Reads what waits for another shard, and drops what has arrived there.
-- ARGV: the shard, the serial of the last entry that it has received ('' : none), how many entries, how many bytes. Answers the next
-- entries: {serial, kind, now, ...} (msgpack).

local STEP = 8

local target, upto = ARGV[1], ARGV[2]
local count_most, bytes_most = tonumber(ARGV[3]), tonumber(ARGV[4])
local key = base .. ':t:' .. target

-- Calls ``visit`` with the first entries, one by one. They are not read all at once, as they may be large.
local function each(visit)
    for first = 0, count_most - 1, STEP do
        local piece = call('LRANGE', key, first, first + STEP - 1)
        for i, packed in ipairs(piece) do
            if visit(packed, cmsgpack.unpack(packed), first + i) then
                return
            end
        end
        if #piece < STEP then
            return
        end
    end
end

-- Removes all of a job that has arrived, but leaves a trace.
local function forget_left(id, serial)
    if call('HGET', base .. ':to', id) == serial then
        call('HDEL', base .. ':to', id)
        forget_all({id})
        leave_trace(id)
    end
end

if upto ~= '' then
    local arrived, last = {}, 0
    each(function(_, entry, at)
        arrived[at] = entry
        if entry[1] == upto then
            last = at
            return true
        end
    end)
    for i = 1, last do
        call('LPOP', key)
        if arrived[i][2] == 'job' then
            forget_left(arrived[i][4], arrived[i][1])
        elseif arrived[i][2] == 'schedule' and call('HGET', base .. ':So', arrived[i][4][1]) == arrived[i][1] then
            call('HDEL', base .. ':So', arrived[i][4][1])
        end
    end
end

local answer, bytes = {}, 0
each(function(packed, entry)
    if entry[2] == 'job' then
        local id = entry[4]
        local state = call('HGET', base .. ':to', id) == entry[1] and call('HGET', base .. ':s', id)
        if state then
            packed = cmsgpack.pack({
                entry[1], 'job', entry[3], id, name_of(read_state(state).qid), call('HGET', base .. ':j', id), state,
                call('HGET', base .. ':e', id), call('HGET', base .. ':c', id), call('HGET', base .. ':h', id),
                call('HGET', base .. ':w', id),
            })
        else
            -- It has been there and is back, or on its way once more.
            packed = cmsgpack.pack({entry[1], 'none', entry[3]})
        end
    end
    answer[#answer + 1] = packed
    bytes = bytes + #packed
    return bytes >= bytes_most
end)
return answer
