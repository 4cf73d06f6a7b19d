-- What each agent has added to the tables, which is limited. An agent that reported a row last stands in for the one that
-- added it: the rows do not say which that was.
alter table agents
    add column workload_rows    bigint not null default 0,
    add column environment_rows bigint not null default 0,
    add column member_rows      bigint not null default 0,
    add column clusters         bigint not null default 0;
update agents a set
    workload_rows = (select count(*) from workloads w where w.agent_id = a.agent_id),
    environment_rows = (select count(*) from environments e where e.agent_id = a.agent_id);
