-- Reads and writes schedules, and lists when each must be looked at.

-- uid, version, plan_priority, bucket, flags (which of the following it has), slot, look_at, runs, last_slot, last_job, created_at,
-- updated_at; then the length of the queue's name (4 bytes), that name, the same of the tenant's, and the numbers of the shards (2 bytes
-- each) that have earlier ticks of it.
local SCHEDULE = '>c16I8i4I2Bi8i8I8i8c16I8I8'
local SCHEDULE_SIZE = 95
local BUCKET_AT = 29
local FLAGS = {enabled = 1, slot = 2, look_at = 4, last_slot = 8, last_job = 16}
local NO_JOB = string.rep('\0', 16)

local function read_schedule(packed)
    local uid, version, plan_priority, bucket, flags, slot, look_at, runs, last_slot, last_job, created_at, updated_at =
        struct.unpack(SCHEDULE, packed)
    return {
        uid = uid, version = version, plan_priority = plan_priority, bucket = bucket, runs = runs,
        enabled = is_set(flags, FLAGS.enabled),
        slot = is_set(flags, FLAGS.slot) and slot or nil,
        look_at = is_set(flags, FLAGS.look_at) and look_at or nil,
        last_slot = is_set(flags, FLAGS.last_slot) and last_slot or nil,
        last_job = is_set(flags, FLAGS.last_job) and last_job or nil,
        created_at = created_at, updated_at = updated_at, names = string.sub(packed, SCHEDULE_SIZE + 1),
    }
end

local function write_schedule(s)
    local flags = (s.enabled and FLAGS.enabled or 0) + (s.slot and FLAGS.slot or 0) + (s.look_at and FLAGS.look_at or 0)
        + (s.last_slot and FLAGS.last_slot or 0) + (s.last_job and FLAGS.last_job or 0)
    return struct.pack(
        SCHEDULE, s.uid, s.version, s.plan_priority, s.bucket, flags, s.slot or 0, s.look_at or 0, s.runs, s.last_slot or 0,
        s.last_job or NO_JOB, s.created_at, s.updated_at
    ) .. s.names
end

local function find_schedule(name)
    local packed = call('HGET', base .. ':S', name)
    return packed and read_schedule(packed) or nil
end

local save_schedule, keep_schedule, drop_schedule

do
    -- Returns the list of a schedule; nil: nobody has to look at it.
    local function bucket_of(s)
        return s and s.enabled and s.look_at and base .. ':Sl:' .. s.plan_priority .. ':' .. s.bucket or nil
    end

    -- Changes a list of a priority, and what is kept of its first entry.
    local function change_bucket(key, priority, command, ...)
        local heads = base .. ':Sh:' .. priority
        local was = call('ZRANGE', key, 0, 0, 'WITHSCORES')
        call(command, key, ...)
        local is = call('ZRANGE', key, 0, 0, 'WITHSCORES')
        if was[1] and was[1] ~= is[1] then
            call('ZREM', heads, was[1])
        end
        if is[1] then
            if was[1] ~= is[1] or was[2] ~= is[2] then
                call('ZADD', heads, is[2], is[1])
                call('ZADD', base .. ':Sr', priority, priority)
            end
        elseif call('EXISTS', heads) == 0 then
            call('ZREM', base .. ':Sr', priority)
        end
    end

    -- Moves a schedule between lists; nil: it was not listed, or will not be.
    local function relist(name, was, s)
        local from, to = bucket_of(was), bucket_of(s)
        if from and from ~= to then
            change_bucket(from, was.plan_priority, 'ZREM', name)
        end
        if to and (from ~= to or was.look_at ~= s.look_at) then
            change_bucket(to, s.plan_priority, 'ZADD', number(s.look_at), name)
        end
    end

    function save_schedule(name, was, s)
        call('HSET', base .. ':S', name, write_schedule(s))
        relist(name, was, s)
    end

    function keep_schedule(name, was, s, definition)
        save_schedule(name, was, s)
        call('HSET', base .. ':Sd', name, definition)
        call('ZADD', base .. ':Sn', 0, name)
    end

    function drop_schedule(name, was)
        relist(name, was, nil)
        call('HDEL', base .. ':S', name)
        call('HDEL', base .. ':Sd', name)
        call('ZREM', base .. ':Sn', name)
    end
end
