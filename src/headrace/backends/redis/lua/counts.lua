-- Jobs per queue and state, and bytes of ended ones: added up here, written once.

local counted, weighed = {}, {}

local function count(qid, state, jobs)
    local name = qid .. ':' .. state
    counted[name] = (counted[name] or 0) + jobs
end

local function weigh(state, bytes)
    weighed[state] = (weighed[state] or 0) + bytes
end

local function settle_counts()
    for name, jobs in pairs(counted) do
        if jobs ~= 0 and call('HINCRBY', base .. ':n', name, number(jobs)) == 0 then
            call('HDEL', base .. ':n', name)
        end
    end
    for state, bytes in pairs(weighed) do
        if bytes ~= 0 then
            call('HINCRBY', base .. ':b', state, number(bytes))
        end
    end
    counted, weighed = {}, {}
end
