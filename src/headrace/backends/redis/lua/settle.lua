-- All that was added up, written once.
local function settle()
    settle_counts()
    ready.settle()
    settle_turns()
    settle_signals()
end
