-- The version in which the directory entry of a user was published last. Entries of earlier ones are published again:
-- gateways find people by the hash of their username, which version 0 does not have.
alter table users add column entry_version int not null default 0;

-- When somebody was last active in a workspace, and who; no user for running processes. An idle workspace is stopped,
-- but not before extended_until. idle_warned_of is the deadline in the last warning.
alter table workspaces
    add column last_activity_at      timestamptz,
    add column last_activity_user_id bigint,
    add column extended_until        timestamptz,
    add column idle_warned_of        timestamptz;

---- create above / drop below ----

alter table workspaces
    drop column idle_warned_of, drop column extended_until,
    drop column last_activity_user_id, drop column last_activity_at;
alter table users drop column entry_version;
