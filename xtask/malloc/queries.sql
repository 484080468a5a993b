-- Sorts, groups and serialises rows, and prints hashes of the results. Then prints what pgbench has changed.
select md5(string_agg(md5(n::text), '' order by md5(n::text))) from generate_series(1, 200000) n;
select md5(jsonb_object_agg(k, list)::text)
    from (select n % 1000 as k, jsonb_agg(jsonb_build_object('n', n, 't', repeat('x', n % 50))) as list
        from generate_series(1, 100000) n group by 1) as grouped;
select count(*), sum(length(word)) from regexp_split_to_table(repeat('some words of a text, ', 20000), '[ ,]+') as word;
select md5(array_agg(a order by b)::text) from (select n as a, n * 7919 % 99991 as b from generate_series(1, 200000) n) as numbers;
select (select sum(abalance) from pgbench_accounts), (select sum(tbalance) from pgbench_tellers),
    (select sum(bbalance) from pgbench_branches), (select count(*) from pgbench_history);
