-- Full resyncs that have ended and are not judged yet, at most one for each agent. Their outcome is open. A row is
-- written by the transaction that stores the end event, and deleted by the one that stores the outcome.
create table resyncs_to_judge (
    agent_id  bigint primary key,
    resync_id text not null,
    -- The number of members in the end event.
    count     bigint not null,
    ended_at  timestamptz not null
);

---- create above / drop below ----

drop table resyncs_to_judge;
