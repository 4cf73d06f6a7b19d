-- The number of observed objects of each agent, which is limited. A trigger counts also what an older replica stores. A
-- rebuild creates the same triggers on its own tables, so they name the schema.
alter table agents add column objects bigint not null default 0;
update agents a set objects = (select count(*) from observed_objects o where o.agent_id = a.id);

create function count_inserted_objects() returns trigger language plpgsql as $$
begin
    execute format('update %I.agents a set objects = a.objects + n.objects
        from (select agent_id, count(*) as objects from changed group by agent_id) n where a.id = n.agent_id', tg_table_schema);
    return null;
end $$;

create function count_deleted_objects() returns trigger language plpgsql as $$
begin
    execute format('update %I.agents a set objects = a.objects - n.objects
        from (select agent_id, count(*) as objects from changed group by agent_id) n where a.id = n.agent_id', tg_table_schema);
    return null;
end $$;

create trigger count_inserted after insert on observed_objects
    referencing new table as changed for each statement execute function count_inserted_objects();
create trigger count_deleted after delete on observed_objects
    referencing old table as changed for each statement execute function count_deleted_objects();

-- The members that resync_members has for a resync, which are limited. It is not derived: it depends on the batches.
alter table resyncs add column recorded bigint not null default 0;

---- create above / drop below ----

alter table resyncs drop column recorded;
drop trigger count_inserted on observed_objects;
drop trigger count_deleted on observed_objects;
drop function count_inserted_objects, count_deleted_objects;
alter table agents drop column objects;
