//! The messages of refusals.

use millpond::{
    Budget,
    budget::{BudgetError, Measure},
};
use std::time::Duration;

const GIB: u64 = 1 << 30;

fn pool() -> Budget {
    let process = Budget::root("process");
    let pool = process
        .child_builder("pool")
        .measure(Measure::Allocated)
        .limit(4 * GIB);
    pool.build().expect("a pool")
}

#[test]
fn a_refusal_says_which_budget_and_by_how_much() {
    let pool = pool();
    let tenants: Vec<_> = ["a", "b\u{1b}[31m", "c", "d", "e", "f"]
        .iter()
        .map(|name| pool.child(*name).expect("a tenant"))
        .collect();
    let held: Vec<_> = tenants
        .iter()
        .zip(1..)
        .map(|(t, n)| t.charge(n * GIB / 6).expect("fits"))
        .collect();
    let refused = tenants[0].charge(GIB).expect_err("half a gibibyte is left");
    assert!(matches!(refused, BudgetError::Exceeded(_)));
    let text = refused.to_string();
    assert_eq!(
        text.lines().collect::<Vec<_>>(),
        [
            "out of memory: 1.00 GiB requested, 512 MiB over budget 'process/pool' (3.50 GiB of 4.00 GiB allocated)",
            "  below it: f 1.00 GiB, e 853 MiB, d 683 MiB, c 512 MiB, 2 more 512 MiB",
            "  to free: at least 512 MiB",
        ]
    );
    assert_eq!(
        refused.refusal().expect("a limit").to_string(),
        text.lines().next().expect("a line")
    );
    let (_, fifth) = (drop(held), tenants[1].charge(4 * GIB).expect("all is back"));
    let text = pool.charge(1).expect_err("full").to_string();
    assert!(
        text.contains("b\u{fffd}[31m 4.00 GiB") && !text.contains('\u{1b}'),
        "{text}"
    );
    drop(fifth);
}

#[test]
fn each_reason_has_its_own_message() {
    let pool = pool();
    let too_large = pool.charge(5 * GIB).expect_err("more than the limit");
    assert_eq!(
        too_large.to_string(),
        "out of memory: 5.00 GiB requested, and budget 'process/pool' allows 4.00 GiB allocated in all"
    );
    assert!(!too_large.is_out_of_memory());
    let held = pool.charge(3 * GIB).expect("fits");
    let timed_out = pool
        .charge_timeout(2 * GIB, Duration::ZERO)
        .expect_err("nothing comes back");
    let text = timed_out.to_string();
    let (waited, rest) = text.split_once(": ").expect("two parts");
    assert!(waited.starts_with("after waiting "), "{text}");
    assert!(
        rest.starts_with("out of memory: 2.00 GiB requested, 1.00 GiB over budget 'process/pool'"),
        "{text}"
    );

    let mut wait = pool.charge_async(2 * GIB);
    assert!(wait.join().expect("it may wait").is_none());
    let behind = pool.try_charge(GIB).expect_err("one comes first");
    assert_eq!(
        behind.to_string(),
        "out of memory: 1.00 GiB requested, and 1 other request waits for budget 'process/pool' (3.00 GiB of 4.00 GiB allocated)"
    );
    let over = pool.try_charge(2 * GIB).expect_err("full");
    assert!(
        over.to_string().ends_with("where 1 other request waits"),
        "{over}"
    );
    drop((wait, held));
    let not_forgotten = pool.restore(GIB).expect_err("nothing is");
    assert_eq!(
        not_forgotten.to_string(),
        "1.00 GiB cannot be restored to budget 'process/pool': 0 B of its charges are forgotten"
    );
}

#[test]
fn long_paths_are_truncated() {
    let mut last = Budget::root("r");
    for _ in 0..20 {
        last = last.child("é".repeat(20)).expect("not too deep");
    }
    let path = last.path();
    assert!(path.as_str().len() <= 96 && path.as_str().ends_with('…') && path.as_str().starts_with("r/éé"));
    last.set_limit(Some(0));
    assert!(last.charge(1).expect_err("no room").to_string().contains('…'));
}
