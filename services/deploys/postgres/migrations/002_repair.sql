-- Brings a database that applied an earlier form of 001 to its last form: the file was edited after it was released.
create table if not exists reporters (
    agent_id   bigint primary key,
    project_id bigint not null,
    since      bigint not null
);

create table if not exists claims (
    number      bigint generated always as identity primary key,
    cluster_uid text   collate "C" not null,
    since       bigint not null,
    project_id  bigint not null,
    agent_id    bigint not null,
    claimed_at  timestamptz not null default now()
);
alter table claims
    add column if not exists user_id bigint not null default 0,
    add column if not exists reason  text   not null default '';
create index if not exists claims_cluster on claims (cluster_uid, number);

do $$
begin
    execute 'alter table workloads alter column state set compression lz4';
    execute 'alter table environments alter column state set compression lz4';
exception when feature_not_supported then
    null;
end
$$;
