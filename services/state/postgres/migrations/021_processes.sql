-- The program that was seen to work last in a workspace, if last_activity_at is of running programs; and whether its
-- policy counts them: the gateway asks such workspaces.
alter table workspaces
    add column last_activity_program text,
    add column counts_processes      boolean not null default false;

---- create above / drop below ----

alter table workspaces drop column counts_processes, drop column last_activity_program;
