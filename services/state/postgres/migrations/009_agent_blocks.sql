-- Agents that exceeded a limit. They may not connect before blocked_until. A table of its own: the readers of OBSERVED hold
-- locks of agents.
create table agent_blocks (
    agent_id      bigint primary key references agents,
    reason        text not null,
    blocked_at    timestamptz not null,
    blocked_until timestamptz not null
);

---- create above / drop below ----

drop table agent_blocks;
