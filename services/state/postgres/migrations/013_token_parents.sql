-- The token whose caller created a token. It is revoked with that one. Tokens of the bootstrap and earlier ones have none.
alter table personal_access_tokens add column created_by bigint references personal_access_tokens;
create index on personal_access_tokens (created_by);

---- create above / drop below ----

alter table personal_access_tokens drop column created_by;
