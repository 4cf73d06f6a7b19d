-- Who there is and who may do what. Ids of every kind come from one sequence, whose range no other cell shares.
create sequence ids;

create table organizations (
    id         bigint primary key default nextval('ids'),
    name       text not null unique,
    created_at timestamptz not null default now()
);

create table groups (
    id              bigint primary key default nextval('ids'),
    organization_id bigint not null references organizations,
    parent_group_id bigint references groups,
    name            text not null,
    created_at      timestamptz not null default now(),
    unique nulls not distinct (organization_id, parent_group_id, name)
);

create table projects (
    id              bigint primary key default nextval('ids'),
    organization_id bigint not null references organizations,
    group_id        bigint not null references groups,
    name            text not null,
    created_at      timestamptz not null default now(),
    unique (group_id, name)
);

create table users (
    id         bigint primary key default nextval('ids'),
    username   text not null unique,
    admin      boolean not null default false,
    state      text not null default 'active' check (state in ('active', 'blocked')),
    created_at timestamptz not null default now()
);

create table memberships (
    user_id  bigint not null references users,
    scope    text not null check (scope in ('organization', 'group', 'project')),
    scope_id bigint not null,
    role     text not null check (role in ('reader', 'developer', 'maintainer', 'owner')),
    primary key (user_id, scope, scope_id)
);

create index on memberships (scope, scope_id);

create table personal_access_tokens (
    id           bigint primary key default nextval('ids'),
    user_id      bigint not null references users,
    name         text not null,
    token_hash   bytea not null unique,
    created_at   timestamptz not null default now(),
    expires_at   timestamptz,
    last_used_at timestamptz,
    revoked_at   timestamptz
);

create index on personal_access_tokens (user_id);

create table agents (
    id               bigint primary key default nextval('ids'),
    project_id       bigint not null references projects,
    name             text not null,
    token_hash       bytea not null unique,
    curve_public_key text not null,
    created_at       timestamptz not null default now(),
    last_seen_at     timestamptz,
    -- The agent's own clock: time of its last tick. Decisions over observations take time from here only.
    ticked_at        timestamptz,
    -- The cluster behind the agent, and the epoch of its versions: one more when it was recreated or restored.
    cluster_uid      text,
    epoch            bigint not null default 1,
    revoked_at       timestamptz,
    unique (project_id, name)
);

---- create above / drop below ----

drop table agents, personal_access_tokens, memberships, users, projects, groups, organizations;
drop sequence ids;
