-- Finds jobs that match, newest id first.
-- ARGV: now or '', whether they are named, ids, {queue, key} (msgpack), selector (msgpack), the id below which they are ('' : any), limit,
-- how many to look at. Answers now; for each job: id, job without cells, state, '', '', '', worker, run_at, progress; the names of the queues by
-- number; and the id down to which it has looked ('' : to the end).

local now = clock(ARGV[1])
local sel = selector(ARGV[5])
local below, limit, look = ARGV[6], tonumber(ARGV[7]), tonumber(ARGV[8])
-- Running jobs are looked for among the leases, as long as these are few.
local ONLY_RUNNING, FEW = 2, 5000

local function place_of(id)
    local high, low = struct.unpack('>I4I4', #id == 16 and id or string.rep('\0', 8))
    return high * 4294967296 + low
end

-- Returns a function that returns the ids below one, newest first: only as many are brought into order as are asked for.
local function newest_first(given)
    local ids, places, floor = {}, {}, below ~= '' and place_of(below)
    for _, id in ipairs(given) do
        local place = place_of(id)
        if not floor or place < floor or (place == floor and before(id, below)) then
            ids[#ids + 1], places[id] = id, place
        end
    end
    local count = #ids

    local function is_newer(id, other)
        if places[id] ~= places[other] then
            return places[id] > places[other]
        end
        return before(other, id)
    end

    -- Of a heap: moves an entry down until those below it are older.
    local function sink(at)
        local id, child = ids[at], 2 * at
        while child <= count do
            if child < count and is_newer(ids[child + 1], ids[child]) then
                child = child + 1
            end
            if not is_newer(ids[child], id) then
                break
            end
            ids[at], at, child = ids[child], child, 2 * child
        end
        ids[at] = id
    end

    for at = math.floor(count / 2), 1, -1 do
        sink(at)
    end
    return function()
        local first, last = ids[1], table.remove(ids)
        count = #ids
        if count > 0 then
            ids[1] = last
            sink(1)
        end
        return first
    end
end

local following
local leases = sel[4] == ONLY_RUNNING and ARGV[2] ~= '1' and call('ZCARD', base .. ':l')
if leases and leases <= FEW then
    following = newest_first(call('ZRANGE', base .. ':l', 0, -1))
elseif ARGV[2] == '1' then
    following = newest_first(named(ARGV[3], cmsgpack.unpack(ARGV[4])))
else
    local ids, at = call('ZREVRANGEBYLEX', ids_of(sel), below == '' and '+' or '(' .. below, '-', 'LIMIT', 0, look), 0
    function following()
        at = at + 1
        return ids[at]
    end
end
local answers, known, downto, bytes, looked = {}, {}, '', 0, 0
for id in following do
    local j, job, packed, size = meet(id, sel)
    bytes, looked = bytes + size, looked + 1
    if j then
        local worker = j.state == RUNNING and worker_of(j.text, now)
        known[j.qid] = true
        answers[#answers + 1] = {id, without_cells(job), packed, false, false, false, worker, number(j.run_at), progress_of(id, j)}
    end
    if #answers > limit then
        break
    end
    if looked == look or bytes > MOST_READ then
        downto = id
        break
    end
end
return {number(now), answers, names_of(known), downto}
