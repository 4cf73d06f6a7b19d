-- Agents are configured, policies end workspaces, drift is noticed, orphans are decided upon.
alter table agents
    -- What operators have set; a key that is not there has its default.
    add column configuration          jsonb not null default '{}',
    add column configuration_revision bigint not null default 1,
    -- The revision that its workspaces were last looked at with: a policy that is new may be due at once.
    add column considered_revision    bigint not null default 1;

alter table workspaces
    -- When desired_state, and not only the revision, was changed last: policies count from here.
    add column desired_state_since   timestamptz not null default now(),
    -- The Deployment as the dispatcher has left it: a higher generation was made by somebody else.
    add column applied_uid           text not null default '',
    add column applied_generation    bigint not null default 0,
    -- The ends that its user was warned of: by the policies that count from desired_state_since, and by its age.
    add column expiry_warned_of      timestamptz,
    add column age_warned_of         timestamptz;
update workspaces set desired_state_since = desired_state_changed_at;

alter table orphans
    -- 0 until its deletion is asked for: the revision that asks.
    add column desired_revision bigint not null default 0,
    -- Who asked.
    add column user_id          bigint references users,
    -- Why its deletion failed last.
    add column message          text not null default '',
    -- When it was deleted. It is kept, so that what is told of it twice is known; orphans that go by themselves are not.
    add column ended_at         timestamptz;
create index orphans_place on orphans (agent_id, namespace, name);
create index orphans_deleting on orphans (agent_id, workspace) where desired_revision > 0;

-- JSON as the stream has it: taking it apart takes half of the time of storing it, and few questions look into it.
alter table observed_objects alter column data type text using data::text;

---- create above / drop below ----

alter table observed_objects alter column data type jsonb using data::jsonb;
drop index orphans_deleting, orphans_place;
alter table orphans drop column ended_at, drop column message, drop column user_id, drop column desired_revision;
alter table workspaces drop column age_warned_of, drop column expiry_warned_of, drop column applied_generation, drop column applied_uid, drop column desired_state_since;
alter table agents drop column considered_revision, drop column configuration_revision, drop column configuration;
