-- Wakes workers that wait for jobs of a queue: one signal wakes one of them.
-- A waiter that finds more than it can take passes the signal on. For a job that is due later several are woken, as each of them may be
-- busy by then.

-- How many signals a queue has at most.
local SIGNALS = 8
local wake, signal, settle_signals

do
    local SIGNAL_TTL = 60
    local ONES = {'', '', '', '', '', '', '', ''}

    local woken = {}

    function wake(qid, jobs)
        woken[qid] = (woken[qid] or 0) + jobs
    end

    function signal(queue, jobs)
        local key = base .. ':g:' .. queue
        local there = call('LLEN', key)
        local more = math.min(jobs, SIGNALS - there)
        if more > 0 then
            call('LPUSH', key, unpack(ONES, 1, more))
        end
        if there == 0 then
            call('EXPIRE', key, SIGNAL_TTL)
        end
    end

    function settle_signals()
        for qid, jobs in pairs(woken) do
            signal(name_of(qid), jobs)
        end
        woken = {}
    end
end
