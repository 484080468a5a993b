-- Inserts, sorts, updates and joins rows whose contents follow from their numbers.
create table t(a integer primary key, b text, c real);
insert into t
    select value, hex(zeroblob(value * 7919 % 60)) || printf('%x', value * 2654435761 % 4294967291), value * 48271 % 65537 / 7.0
    from generate_series(1, 400000);
create index i on t(b);
select count(*), sum(length(b)) from t where c > 100;
select a, b from t order by c, a limit 3;
update t set b = b || 'x' where a % 3 = 0;
select count(distinct substr(b, -4)), sum(length(b)) from t;
select length(group_concat(b)) from t where a % 5 = 0;
create table u as select a % 1000 as k, json_group_array(json_object('b', b, 'c', c)) as j from t where a % 4 = 0 group by k;
select sum(json_array_length(j)), sum(length(j)) from u;
select sum(length(json_extract(value, '$.b'))) from u, json_each(j);
delete from t where a % 2 = 0;
vacuum;
select count(*), sum(c) from t join u on (t.a + 1) % 1000 = u.k;
pragma integrity_check;
