-- Entries of agents in the directory name the hash of their token. The form in which each was told last: those of an earlier one are told again.
alter table agents add column entry_form int not null default 0;

---- create above / drop below ----

alter table agents drop column entry_form;
