-- Runs a claim and puts its answer together.
-- ARGV from ``first``: holder, queue names (msgpack), limit, lease_for, lost_below, max_bytes, wanted sections (a bit for each). Answers: ids,
-- jobs, states, replaced cells, errors, the names of the queues by number, the time until there may be more (-1: unknown),
-- whether a job was passed over (2: and this holder is to make room for it), expired jobs, and how many bytes there is still
-- room for.

local answer_claim

do
    -- How many queues with more jobs get a signal, and in how many queues with passed-over jobs a holder is chosen.
    local SIGNALLED = 64
    -- Bytes of a job from which it pays to leave out what a run has replaced.
    local LARGE = 65536

    -- Returns, by queue number: the time until there may be more for this holder (false: unknown), and whether
    -- there is more now for any.
    local function rest_of(parts, b)
        local coming, more, asked = {}, {}, 0
        local all_met = b.left() > 0 and not b.is_spent()
        for _, part in ipairs(parts) do
            if part.skipped and part.coming <= b.now then
                coming[part[1]], more[part[1]] = false, true
            elseif part.governed and (not part.skipped or asked < VISITED) then
                local till, is_more = visits().coming(part[1], b)
                coming[part[1]], more[part[1]] = till or false, is_more
                asked = asked + 1
            elseif part.governed then
                coming[part[1]], more[part[1]] = part.coming < FOREVER and part.coming - b.now, false
            elseif not part.governed then
                local levels, comings = ready.first_levels(part), ask('ZMSCORE', base .. ':fq', part)
                for i, qid in ipairs(part) do
                    local till = comings[i] and math.max(0, tonumber(comings[i]) - b.now) or false
                    local only_passed = all_met and b.passed[qid]
                    coming[qid], more[qid] = levels[qid] and not only_passed and 0 or till, levels[qid] and true or till == 0
                end
            end
        end
        return coming, more
    end

    function answer_claim(now, first)
        local holder, limit, lease_for, lost_below = ARGV[first], tonumber(ARGV[first + 2]), tonumber(ARGV[first + 3]), tonumber(ARGV[first + 4])
        local want = tonumber(ARGV[first + 6])
        local b = open_batch(now, holder, limit, lease_for, lost_below, tonumber(ARGV[first + 5]), want)
        local parts, next_in = parts_of(cmsgpack.unpack(ARGV[first + 1]), now, b)
        claim(b, parts)
        local ids = b.ids
        local short = #ids < limit
        local quiet, signalled = {}, 0
        local coming, more = rest_of(parts, b)
        for qid, till in pairs(coming) do
            if till then
                next_in = math.min(next_in or FOREVER, till)
            end
            if more[qid] and (not short or b.room <= 0) and signalled < SIGNALLED then
                wake(qid, 1)
                signalled = signalled + 1
            elseif not more[qid] then
                quiet[#quiet + 1] = base .. ':g:' .. name_of(qid)
            end
        end
        if limit == 1 and lost_below == NO_BOUND then
            stay_chosen(coming, now, holder, lease_for)
        end
        for from = 1, #quiet, MANY do
            call('DEL', unpack(quiet, from, math.min(from + MANY - 1, #quiet)))
        end
        local passed, asked = 0, 0
        for qid in pairs(b.passed) do
            if asked < SIGNALLED then
                passed, asked = math.max(passed, choose(qid, now, holder, lease_for)), asked + 1
            end
        end
        local patched, errors = {}, {}
        if #ids > 0 and call('EXISTS', base .. ':c') == 1 then
            patched = ask('HMGET', base .. ':c', ids)
        end
        if #ids > 0 and call('EXISTS', base .. ':e') == 1 then
            errors = ask('HMGET', base .. ':e', ids)
        end
        for i, job in ipairs(b.jobs) do
            if want ~= ALL_SECTIONS or patched[i] and #job > LARGE then
                b.jobs[i], patched[i] = trim.job(job, trim.unreplaced(patched[i], want)), trim.patches(patched[i], want)
            end
        end
        next_in = (b.room <= 0 or b.is_spent()) and 0 or next_in or -1
        return {
            ids, b.jobs, b.states, patched, errors, names_of(b.qids), short and number(next_in) or '-1', passed, taken_back(b.expired), number(b.room),
        }
    end
end
