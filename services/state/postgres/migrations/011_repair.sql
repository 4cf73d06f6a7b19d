-- Brings a database that applied an earlier form of 003 or 004 to their last form: the files were edited after they
-- were released.
alter table agents add column if not exists considered_revision bigint not null default 1;

alter table workspaces add column if not exists age_warned_of timestamptz;

alter table orphans
    add column if not exists message  text not null default '',
    add column if not exists ended_at timestamptz;
create index if not exists orphans_place on orphans (agent_id, namespace, name);
create index if not exists orphans_deleting on orphans (agent_id, workspace) where desired_revision > 0;

do $$
begin
    if exists (
        select from pg_attribute
        where attrelid = 'observed_objects'::regclass and attname = 'data' and atttypid = 'jsonb'::regtype
    ) then
        alter table observed_objects alter column data type text using data::text;
    end if;
end
$$;

create table if not exists ended_memberships (
    user_id  bigint not null references users,
    scope    text   not null,
    scope_id bigint not null,
    role     text   not null,
    primary key (user_id, scope, scope_id)
);
