-- Reads the rules of governed queues, and keeps their rates and paused tasks.

-- Adds this to ``self``, the turns.
local function open_rates(self, queues)
    -- Returns what is known of a queue: policy, round, rates in use, paused tasks.
    function self.queue(qid)
        qid = tonumber(qid)
        local known = queues[qid]
        if not known then
            local round = tonumber(call('HGET', base .. ':o', qid))
            known = {
                qid = qid, policy = policy_of(qid), round = round, was = round, rates = {}, buckets = {}, moved = {}, window = {},
                paused = call('EXISTS', base .. ':oz:' .. qid) == 1 and {},
            }
            queues[qid] = known
        end
        return known
    end

    -- Returns the bucket of a queue's or task's rate, by its field. If the rate has changed, it starts over.
    local function bucket_of(q, field, rate)
        if not rate then
            return nil
        end
        local bucket = q.buckets[field]
        if not bucket then
            local packed = call('HGET', base .. ':of:' .. q.qid, field)
            bucket = packed and cmsgpack.unpack(packed)
            if not bucket or bucket[1] ~= rate[1] or bucket[2] ~= rate[2] then
                bucket = {rate[1], rate[2], 0}
            end
            q.buckets[field] = bucket
        end
        return bucket
    end

    local function task_bucket(q, task)
        if not q.policy[RULE.task_rates] then
            return nil
        end
        local rate = q.rates[task]
        if rate == nil then
            local packed = call('HGET', base .. ':Pk:' .. q.qid, task)
            rate = packed and cmsgpack.unpack(packed)
            q.rates[task] = rate
        end
        return rate and bucket_of(q, 'k' .. task, rate)
    end

    local function tenant_bucket(q, t)
        local rate = t.limit and t.limit[2] or q.policy[RULE.tenant_rate]
        if not rate then
            t.bucket = false
        elseif not t.bucket or t.bucket[1] ~= rate[1] or t.bucket[2] ~= rate[2] then
            t.bucket = {rate[1], rate[2], 0}
        end
        return t.bucket or nil
    end

    -- Returns how many jobs may start now.
    local function free(bucket, now)
        return math.max(0, bucket[2] - math.ceil(math.max(0, bucket[3] - now) / bucket[1]))
    end

    local function opens_at(bucket)
        return bucket[3] - (bucket[2] - 1) * bucket[1]
    end

    local function spend(bucket, now, jobs)
        if bucket then
            bucket[3], bucket.changed = math.max(bucket[3], now) + jobs * bucket[1], true
        end
    end

    -- Whether jobs of every task may start, and any number of them.
    local function is_open(q)
        return not q.paused and not q.policy[RULE.task_rates]
    end

    -- Returns when jobs of a task may start; 0: now.
    local function closed_until(q, task, now)
        local bucket = task_bucket(q, task)
        local till = bucket and free(bucket, now) == 0 and opens_at(bucket) or 0
        local paused = 0
        if q.paused then
            paused = q.paused[task] or tonumber(call('ZSCORE', base .. ':oz:' .. q.qid, task) or 0)
            q.paused[task] = paused
        end
        return math.max(till, paused > now and paused or 0)
    end

    function self.queue_bucket(q)
        return bucket_of(q, 'q', q.policy[RULE.rate])
    end

    function self.running(q)
        return tonumber(call('HGET', base .. ':n', q.qid .. ':' .. RUNNING) or 0) + (counted[q.qid * STATES + RUNNING] or 0)
    end

    self.free, self.opens_at, self.spend, self.closed_until, self.is_open = free, opens_at, spend, closed_until, is_open
    self.task_bucket, self.tenant_bucket = task_bucket, tenant_bucket

    function self.settle_queues()
        for qid, q in pairs(queues) do
            if q.round ~= q.was then
                call('HSET', base .. ':o', qid, number(q.round))
                q.was = q.round
            end
            for field, bucket in pairs(q.buckets) do
                if bucket.changed then
                    call('HSET', base .. ':of:' .. qid, field, cmsgpack.pack({bucket[1], bucket[2], bucket[3]}))
                    bucket.changed = nil
                end
            end
        end
    end
end
