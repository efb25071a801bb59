-- Takes in what another shard has sent.
-- ARGV: that shard, then entries in the order of their numbers. Entries that were taken in before change nothing. Answers the serial of the
-- last entry: it and all before it are here.

-- How many replids of a source are remembered, each with its last number. Older entries do not come again.
local REPLIDS = 16

local source = ARGV[1]
local key = base .. ':tr:' .. source

local function arrive(now, id, queue, job, state, error, cells, result, waiters)
    local was = call('HGET', base .. ':s', id)
    if call('HEXISTS', base .. ':j', id) == 1 and not (was and read_state(was).cancel == asked.left) then
        return
    end
    local j = read_state(state)
    instant = now
    j.qid, j.cancel = qid_of(queue), 0
    call('HDEL', base .. ':to', id)
    call('ZREM', base .. ':m', id)
    store_whole(now, id, j, job, error, cells, result, waiters)
end

-- A row: its head, the length of what follows (4 bytes), {queue, key, rule, inbox, tenant, group, hour} (msgpack), its body.
local function spawn(now, row)
    local length = struct.unpack('>I4', row, ROW_SIZE + 1)
    local names = cmsgpack.unpack(string.sub(row, ROW_SIZE + 5, ROW_SIZE + 4 + length))
    local keyed = names[2] and {{1, names[2], names[3]}} or {}
    local inboxes = names[4] and {{1, names[4]}} or {}
    local owned = {{1, names[5], names[7]}}
    local grouped = names[6] and {{1, names[6]}} or {}
    instant = now
    local body = string.sub(row, ROW_SIZE + 5 + length)
    insert_rows(now, {qid_of(names[1])}, string.sub(row, 1, ROW_SIZE), keyed, inboxes, owned, grouped, 1, {body})
end

-- The job has taken the key along and ended: the key names nothing, unless another job has it.
local function let_go_of_key(now, queue, name)
    local qid = call('HGET', base .. ':q', queue)
    if qid and not select(2, key_owner(qid, name, now, 0)) then
        call('HDEL', base .. ':k', key_field(qid, name))
    end
end

-- Of two schedules with one name the older one stays.
local function settle_in(name, packed, definition)
    local was, s = find_schedule(name), read_schedule(packed)
    local older = was and (was.created_at < s.created_at
        or (was.created_at == s.created_at and bytes_before(was.uid, s.uid)))
    local newer = was and was.uid == s.uid and was.version > s.version
    if not older and not newer then
        keep_schedule(name, was, s, definition)
    end
    tell('schedules', 'all', '')
end

local last, serial = {}, ''
for i = 2, #ARGV do
    local entry = cmsgpack.unpack(ARGV[i])
    local kind, now = entry[2], tonumber(entry[3])
    serial = entry[1]
    local count, replid = string.match(serial, '(%d+):(%x+)')
    last[replid] = last[replid] or tonumber(call('HGET', key, replid) or 0)
    if tonumber(count) > last[replid] then
        if kind == 'job' then
            arrive(now, unpack(entry, 4, 11))
        elseif kind == 'row' then
            spawn(now, entry[4])
        elseif kind == 'key' then
            let_go_of_key(now, unpack(entry[4]))
        elseif kind == 'schedule' then
            settle_in(unpack(entry[4]))
        end
        last[replid] = tonumber(count)
    end
end
for replid, count in pairs(last) do
    call('HSET', key, replid, number(count))
end
local replids = call('HKEYS', key)
if #replids > REPLIDS then
    local lowest
    for _, replid in ipairs(replids) do
        local count = tonumber(call('HGET', key, replid))
        if not last[replid] and (not lowest or count < lowest[2]) then
            lowest = {replid, count}
        end
    end
    if lowest then
        call('HDEL', key, lowest[1])
    end
end
settle()
return serial
