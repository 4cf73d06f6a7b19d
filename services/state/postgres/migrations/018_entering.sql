-- Public keys with which people enter workspaces by SSH. A removed key stays for a while, so that its removal is
-- published again after a restore.
create table ssh_keys (
    fingerprint bytea primary key check (length(fingerprint) = 32),
    user_id     bigint not null references users,
    name        text not null,
    public_key  text not null,
    created_at  timestamptz not null,
    expires_at  timestamptz,
    removed_at  timestamptz
);

create unique index ssh_keys_name on ssh_keys (user_id, name) where removed_at is null;
create index on ssh_keys (user_id, removed_at);

-- Other people who may enter a workspace.
alter table workspaces add column shares jsonb not null default '[]';
create index on workspaces using gin (shares jsonb_path_ops) where shares <> '[]';

---- create above / drop below ----

alter table workspaces drop column shares;
drop table ssh_keys;
