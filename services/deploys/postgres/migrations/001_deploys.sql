-- What is concluded from the stream OBSERVED, and how far it was told. All of it but the positions on the stream DEPLOYS can be rebuilt.

-- One row: counts the transactions of the reader, so that it knows whether what it remembers is what is stored.
create table intake (
    one     boolean primary key default true check (one),
    batches bigint not null default 0
);
insert into intake default values;

-- What each agent says of itself: its cluster, its clock, its full resyncs.
create table agents (
    agent_id           bigint primary key,
    cluster_uid        text   not null,
    -- Grows when the cluster's resource versions began anew.
    epoch              int    not null default 0,
    -- The agent's own clock.
    ticked_at          timestamptz,
    -- The full resync that began last, and whether it is still open.
    resync_id          text    not null default '',
    resync_open        boolean not null default false,
    resync_expected    bigint  not null default 0,
    resync_versions    jsonb,
    resync_at          timestamptz,
    selection          text    not null default '',
    -- The selection of the last full resync that was complete; null before there was one.
    selection_complete text,
    -- When the first one in a row with that selection was complete.
    complete_at        timestamptz,
    -- Versions of a listing some time ago, below which no later one can be.
    listed_versions    jsonb,
    listed_at          timestamptz
);

-- Agents that have told something, and the project of each. Neither this nor the next table is derived from the stream OBSERVED alone: they are what was decided
-- when it was read first, and a rebuild goes by them.
create table reporters (
    agent_id   bigint primary key,
    project_id bigint not null,
    -- Position on the stream of the first message that was taken in: those before it were refused.
    since      bigint not null
);

-- Whose each cluster is: the project whose agent reported it first, until an administrator releases it. Nothing is ever taken out of it: it tells who decided what.
create table claims (
    -- The last one counts.
    number      bigint generated always as identity primary key,
    cluster_uid text   collate "C" not null,
    -- Position on the stream from which on it is so.
    since       bigint not null,
    -- 0 is nobody's: it was released, and is the next one's who reports it.
    project_id  bigint not null,
    -- That reported it; 0 where an administrator decided, who was that user, for that reason.
    agent_id    bigint not null,
    user_id     bigint not null default 0,
    reason      text   not null default '',
    claimed_at  timestamptz not null default now()
);
create index claims_cluster on claims (cluster_uid, number);

-- Full resyncs that began, so that one that is read again is known.
create table resyncs (
    agent_id  bigint not null,
    resync_id text   collate "C" not null,
    begun_at  timestamptz not null,
    primary key (agent_id, resync_id)
);

-- Members of full resyncs that are open.
create table resync_members (
    agent_id bigint not null,
    object   text   collate "C" not null,
    -- The workload that the object is; null for what keeps revisions.
    workload uuid,
    primary key (agent_id, object)
);

create table workloads (
    -- A digest of the key.
    id            uuid   primary key,
    cluster_uid   text   not null,
    -- That told of it last.
    agent_id      bigint not null,
    -- It is there and followed.
    present       boolean not null,
    -- When a tick matters.
    wake_at       timestamptz,
    -- The state of the pure core, as it is.
    state         text   not null,
    -- Position on DEPLOYS of the last fact of it.
    told          bigint not null default 0
) with (fillfactor = 70);
create index workloads_wake on workloads (cluster_uid, wake_at) where wake_at is not null;
create index workloads_agent on workloads (agent_id) where present;

create table environments (
    id            uuid   primary key,
    cluster_uid   text   not null,
    agent_id      bigint not null,
    wake_at       timestamptz,
    state         text   not null,
    told          bigint not null default 0
) with (fillfactor = 70);
create index environments_wake on environments (cluster_uid, wake_at) where wake_at is not null;

-- Every fact, once for ever.
create table facts (
    id              text   collate "C" primary key,
    -- The workload or environment.
    workload        uuid   not null,
    sequence        bigint not null,
    fact            text   not null,
    rollout_id      text   not null default '',
    occurred_at     timestamptz not null,
    observed_at     timestamptz not null,
    data            text   not null,
    -- Position on DEPLOYS; 0 while it is not known, -1 when it is too old to be there again.
    stream_sequence bigint not null default 0,
    recorded_at     timestamptz not null default now()
);
create index facts_workload on facts (workload, sequence);
create index facts_stream on facts (stream_sequence);

create table rollouts (
    id                  text   collate "C" primary key,
    workload            uuid   not null,
    cluster_uid         text   not null,
    agent_id            bigint not null,
    namespace           text   not null,
    kind                text   not null,
    name                text   not null,
    uid                 text   not null,
    revision            bigint not null,
    template_hash       text   not null,
    change              text   not null,
    of_revision         bigint not null,
    strategy            text   not null,
    images              jsonb  not null,
    previous_images     jsonb  not null,
    labels              jsonb  not null,
    commit_sha          text   not null,
    deploy_group        text   not null,
    started_at          timestamptz not null,
    started_observed_at timestamptz not null,
    replicas_at_start   bigint not null,
    scaled_during       boolean not null,
    last_sequence       bigint not null,
    updated_at          timestamptz not null,
    -- Null in a change is as it was before.
    first_sequence      bigint,
    state               text,
    ended_at            timestamptz,
    ended_observed_at   timestamptz,
    drained_at          timestamptz,
    duration_ms         bigint,
    counts              jsonb,
    stalled             boolean,
    blocked             boolean,
    paused              boolean,
    troubled            boolean, -- it has stalled or was blocked at any time
    reconstructed       boolean,
    reason              text,
    message             text,
    superseded_by       text
) with (fillfactor = 70);
create index rollouts_started on rollouts (started_at desc, id desc);
create index rollouts_workload on rollouts (workload, first_sequence);
create index rollouts_running on rollouts (agent_id) where state = 'running';

-- States are written again and again: the faster of the two compressions counts, where the server has it.
do $$
begin
    execute 'alter table workloads alter column state set compression lz4';
    execute 'alter table environments alter column state set compression lz4';
exception when feature_not_supported then
    null;
end
$$;
