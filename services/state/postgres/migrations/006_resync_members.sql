-- The members of the last full resync of each agent, one row for each transaction that stored some. A member is recorded
-- here and not with its object, because an update would write the object's data again.
create table resync_members (
    agent_id   bigint not null,
    resync_id  text not null,
    kinds      text[] not null,
    namespaces text[] not null,
    names      text[] not null
);

create index resync_members_resync on resync_members (agent_id, resync_id);

insert into resync_members (agent_id, resync_id, kinds, namespaces, names)
select agent_id, resync_id, array_agg(o.kind), array_agg(o.namespace), array_agg(o.name)
from resyncs r join observed_objects o using (agent_id, resync_id)
where r.outcome = 'open'
group by agent_id, resync_id;

comment on column observed_objects.resync_id is 'unused since resync_members; an older replica may still write it';

---- create above / drop below ----

drop table resync_members;
