-- Finds ended jobs that a sweep may remove.

-- Returns id, instant, state (j) and whether it is too old (old), of each, in the order of their ends; and whether it stopped half way.
-- ``by``: ``age`` from which they are too old (-1: none is), ``first``: how many are found whatever their age, ``most``: how many that are
-- too old, ``last``: the latest instant at which they may have ended, ``dry``: whether it is a dry run, and ``goes``: whether all are removed
-- at once. Held jobs are remembered only as long as none before them may go: that one may still be here next time.
local function find_ended(now, state, by)
    local known, walked, held, earliest = 0, nil, nil, nil
    if state == COMPLETED then
        known, walked, held, earliest = after_held(now)
    end
    local found, aged, more, done = {}, 0, false, false
    local at, budget = by.first > 0 and 0 or known, math.max(by.first, known) + 50 * by.most
    while not done do
        local upto = at < by.first and by.first or at + MANY / 2
        local ids, ends, states = ended_jobs(base .. ':d:' .. state, at, upto - 1)
        for i, id in ipairs(ids) do
            local j, instant = read_state(states[i]), tonumber(ends[i])
            local past = by.age >= 0 and instant <= now - by.age
            local old = past and not (state == COMPLETED and j.held_until > now)
            if instant > by.last or aged == by.most or (at >= by.first and not past) then
                break
            elseif old or at < by.first then
                j.state = state
                found[#found + 1] = {id = id, instant = ends[i], j = j, old = old}
                aged = aged + (old and 1 or 0)
            end
            if past and not old and (aged == 0 or by.goes) then
                walked, held, earliest = ends[i], id, math.min(earliest or j.held_until, j.held_until)
            end
            at = at + 1
        end
        done = at < upto or by.age < 0 or aged == by.most
        if at == by.first then
            at = math.max(at, known)
        elseif at > budget and not done then
            more, done = not by.dry, true
        end
    end
    if not by.dry and state == COMPLETED and at > known and walked then
        remember_held(walked, held, earliest)
    end
    return found, more
end
