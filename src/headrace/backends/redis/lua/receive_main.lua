-- Take in what another shard has sent. ARGV: that shard, then entries in the order of their numbers. Those that were taken in before
-- change nothing. Answers the number up to which all are here.

local source = ARGV[1]
local last = tonumber(call('HGET', base .. ':tr', source) or 0)

local function arrive(now, id, queue, job, state, error, cells, result, waiters)
    local was = call('HGET', base .. ':s', id)
    if call('HEXISTS', base .. ':j', id) == 1 and not (was and read_state(was).cancel == LEFT) then
        return
    end
    local j = read_state(state)
    j.qid, j.cancel = qid_of(queue), 0
    call('HDEL', base .. ':to', id)
    call('ZREM', base .. ':m', id)
    call('ZADD', base .. ':a', 0, id)
    call('HSET', base .. ':j', id, job)
    local tenant = described(job)[3]
    if tenant ~= '' then
        enter_tenant(id, tenant)
    end
    for name, value in pairs({[':e'] = error, [':c'] = cells, [':h'] = result, [':w'] = waiters}) do
        if value then
            call('HSET', base .. name, id, value)
        else
            call('HDEL', base .. name, id)
        end
    end
    if j.keyed == 1 then
        local _, taken = key_holder(j.qid, key_of(id), now, false)
        if taken then
            j.keyed = 0
        else
            take_key(id, j.qid, key_of(id))
        end
    end
    save(id, j)
    count(j.qid, j.state, 1)
    if j.state == AVAILABLE then
        put_ready(id, j)
        wake(j.qid, 1)
    elseif j.state >= COMPLETED then
        call('ZADD', base .. ':d:' .. j.state, number(j.instant), id)
        weigh(j.state, j.size)
        end_key(id, j, j.held_until)
        if result then
            call('ZADD', base .. ':hx', number(j.held_until), id)
        end
    end
end

-- A row: its head, the length of what follows (4 bytes), {queue, key, hold_failed, inbox, tenant} (msgpack), its body.
local function spawn(now, row)
    local length = struct.unpack('>I4', row, ROW_SIZE + 1)
    local names = cmsgpack.unpack(string.sub(row, ROW_SIZE + 5, ROW_SIZE + 4 + length))
    local keyed = names[2] and {{1, names[2], names[3]}} or {}
    local inboxes = names[4] and {{1, names[4]}} or {}
    local tenants = names[5] ~= '' and {{1, names[5]}} or {}
    local body = string.sub(row, ROW_SIZE + 5 + length)
    insert_rows(now, {qid_of(names[1])}, string.sub(row, 1, ROW_SIZE), keyed, inboxes, tenants, 1, {body})
end

-- The job that takes the key here is gone already.
local function take_and_drop_key(now, packed)
    local names = cmsgpack.unpack(packed)
    local qid = qid_of(names[1])
    local _, taken = key_holder(qid, names[2], now, false)
    if not taken then
        call('HDEL', base .. ':k', key_field(qid, names[2]))
    end
end

for i = 2, #ARGV do
    local entry = cmsgpack.unpack(ARGV[i])
    local mark, kind, now = tonumber(entry[1]), entry[2], tonumber(entry[3])
    if mark > last then
        if kind == 'job' then
            arrive(now, unpack(entry, 4, 11))
        elseif kind == 'row' then
            spawn(now, entry[4])
        elseif kind == 'key' then
            take_and_drop_key(now, entry[4])
        end
        last = mark
    end
end
call('HSET', base .. ':tr', source, number(last))
settle_counts()
settle_signals()
return number(last)
