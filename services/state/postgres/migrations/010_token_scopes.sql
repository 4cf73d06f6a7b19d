-- What a personal access token may do: read, write or admin. Earlier tokens may do everything.
alter table personal_access_tokens add column scope text not null default 'admin';

---- create above / drop below ----

alter table personal_access_tokens drop column scope;
