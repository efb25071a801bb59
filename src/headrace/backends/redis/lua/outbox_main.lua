-- What waits for another shard. ARGV: the shard, the number up to which it has taken all in ('0': nothing), how many entries, how
-- many bytes. Drops those that it has, and answers with the next: {number, kind, now, ...} (msgpack).

local target, upto = ARGV[1], tonumber(ARGV[2])
local count_most, bytes_most = tonumber(ARGV[3]), tonumber(ARGV[4])
local key = base .. ':t:' .. target

-- Nothing is left of a job that has arrived but its id, by which an insert that is repeated is known.
local function forget_left(id, mark)
    if call('HGET', base .. ':to', id) == mark then
        leave_tenants({id})
        for _, name in ipairs({':to', ':j', ':s', ':e', ':c', ':w', ':h'}) do
            call('HDEL', base .. name, id)
        end
        call('ZADD', base .. ':m', number(clock('')), id)
    end
end

while upto > 0 do
    local packed = call('LINDEX', key, 0)
    local entry = packed and cmsgpack.unpack(packed)
    if not entry or tonumber(entry[1]) > upto then
        break
    end
    call('LPOP', key)
    if entry[2] == 'job' then
        forget_left(entry[4], entry[1])
    end
end

local answer, bytes = {}, 0
for _, packed in ipairs(call('LRANGE', key, 0, count_most - 1)) do
    local entry = cmsgpack.unpack(packed)
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
    if bytes >= bytes_most then
        break
    end
end
return answer
