-- Stop or resume claims from a queue. ARGV: its name, '1' to pause.
local qid = qid_of(ARGV[1])
if ARGV[2] == '1' then
    call('SADD', base .. ':z', qid)
else
    call('SREM', base .. ':z', qid)
    wake(qid, SIGNALS)
end
settle_signals()
return 1
