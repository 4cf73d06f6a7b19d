-- Agents whose watcher reported before and is silent: a published event says so. A table of its own, as agent_blocks.
create table agent_silences (
    agent_id     bigint primary key references agents,
    -- agents.last_seen_at when the silence was found.
    silent_since timestamptz not null
);

---- create above / drop below ----

drop table agent_silences;
