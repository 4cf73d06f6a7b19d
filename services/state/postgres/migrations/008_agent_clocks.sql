-- How far the agent's clock was ahead when the stream stored its last tick.
alter table agents add column clock_offset_ms bigint not null default 0;

comment on column agents.ticked_at is 'the agent''s time of its last tick, at most a minute after the stream stored it';

---- create above / drop below ----

alter table agents drop column clock_offset_ms;
