-- Jobs that can expire, by lane: claims find out in one probe whether any of a lane has.
CREATE INDEX ready_doomed ON ready (lane, dies_at) WHERE dies_at IS NOT NULL;
