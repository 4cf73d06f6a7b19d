-- What people want, and what their clusters say.
create table templates (
    -- 0 serves every project.
    project_id bigint not null,
    name       text not null,
    spec       jsonb not null,
    updated_at timestamptz not null default now(),
    primary key (project_id, name)
);

create table workspaces (
    id                       uuid primary key,
    name                     text not null,
    project_id               bigint not null references projects,
    agent_id                 bigint not null references agents,
    user_id                  bigint not null references users,
    template                 text not null,
    namespace                text not null,
    spec                     jsonb not null,
    desired_state            text not null check (desired_state in ('running', 'stopped', 'terminated', 'restart_requested')),
    -- Grows with every change that the cluster has to hear of.
    desired_revision         bigint not null check (desired_revision > 0),
    actual_state             text not null check (actual_state in ('creation_requested', 'starting', 'running', 'stopping', 'stopped', 'failed', 'error',
                                                                   'terminating', 'terminated', 'unknown')),
    reason                   text not null default '',
    message                  text not null default '',
    -- Counts the changes of actual_state and reason.
    actual_state_revision    bigint not null default 0,
    -- The agent's time from which on the actual state is another one if nothing else happens.
    reconsider_at            timestamptz,
    -- What the dispatcher said last.
    applied_revision         bigint not null default 0,
    applied_at               timestamptz,
    apply_error_revision     bigint,
    apply_error_reason       text,
    apply_error_message      text,
    termination              text not null default 'none' check (termination in ('none', 'in_progress', 'finished')),
    idempotency_key          text,
    created_at               timestamptz not null,
    desired_state_changed_at timestamptz not null,
    actual_state_changed_at  timestamptz not null,
    check ((apply_error_revision is null) = (apply_error_reason is null))
);

create unique index workspaces_name on workspaces (name) where actual_state <> 'terminated';
create unique index workspaces_idempotency_key on workspaces (user_id, idempotency_key) where idempotency_key is not null;
create index workspaces_agent on workspaces (agent_id) where actual_state <> 'terminated';
create index workspaces_reconsider on workspaces (agent_id, reconsider_at) where reconsider_at is not null;
create index workspaces_project on workspaces (project_id, id desc);

create table workspace_secrets (
    workspace_id uuid not null references workspaces on delete cascade,
    kind         text not null check (kind in ('env', 'files')),
    -- All values of the kind in one box, sealed to this service's own key.
    box          bytea not null,
    primary key (workspace_id, kind)
);

-- The last observation of each object. Everything here can be rebuilt from the stream OBSERVED.
create table observed_objects (
    agent_id         bigint not null,
    kind             text not null,
    namespace        text not null,
    name             text not null,
    uid              text not null,
    cluster_uid      text not null,
    epoch            bigint not null,
    resource_version numeric(39, 0) not null,
    deleted          boolean not null,
    workspace_id     uuid,
    -- The last full resync that it was a member of.
    resync_id        text,
    -- The event's data.
    data             jsonb not null,
    primary key (agent_id, kind, namespace, name)
);

create index observed_objects_workspace on observed_objects (workspace_id) where workspace_id is not null;

create table resyncs (
    agent_id      bigint not null,
    resync_id     text not null,
    cluster_uid   text not null,
    epoch         bigint not null,
    nonce         text,
    cause         text not null,
    list_versions jsonb not null,
    expected      bigint not null,
    received      bigint not null default 0,
    -- complete: every member arrived and absence was judged. incomplete: it ended with members missing, or another began before its end.
    outcome       text not null default 'open' check (outcome in ('open', 'complete', 'incomplete')),
    begun_at      timestamptz not null,
    ended_at      timestamptz,
    primary key (agent_id, resync_id)
);

-- Deployments of workspaces that are not known, so that each is told once.
create table orphans (
    agent_id  bigint not null,
    uid       text not null,
    -- The label that names the workspace.
    workspace text not null,
    namespace text not null,
    name      text not null,
    seen_at   timestamptz not null,
    primary key (agent_id, uid)
);

---- create above / drop below ----

drop table orphans, resyncs, observed_objects, workspace_secrets, workspaces, templates;
