-- Counts the commands of a script that stops when it has sent many, and is called again for the rest.

local run, ENOUGH, steps = call, 3000, 0

local function call(...)
    steps = steps + 1
    return run(...)
end

local function is_enough()
    return steps >= ENOUGH
end
