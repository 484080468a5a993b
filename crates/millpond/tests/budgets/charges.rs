//! Charges without waiting.

use millpond::{
    Budget,
    budget::{BudgetError, Measure},
};

fn family() -> (Budget, Budget, Budget) {
    let top = Budget::builder("top").limit(100).build().expect("a root");
    let left = top.child_builder("left").limit(80).build().expect("a child");
    let right = top.child("right").expect("a child");
    (top, left, right)
}

#[test]
fn a_charge_reaches_all_parents_or_none() {
    let (top, left, right) = family();
    let held = right.charge(50).expect("fits");
    assert_eq!((top.used(), left.used(), right.used()), (50, 0, 50));
    // The child has room, and its parent has none.
    let refused = left.try_charge(60).expect_err("too much in all");
    assert!(refused.budget.is_same(&top));
    assert_eq!(
        (refused.requested, refused.limit, refused.used, refused.over_by()),
        (60, 100, 50, 10)
    );
    assert_eq!((top.used(), left.used(), left.remaining()), (50, 0, 80));
    assert_eq!((top.refusals(), left.refusals()), (1, 0));
    // A refused charge leaves no peak.
    assert_eq!(left.peak(), 0);
    drop(held);
    assert_eq!((top.used(), top.peak(), right.peak()), (0, 50, 50));
    assert!(
        left.try_charge(81)
            .expect_err("the child's own limit")
            .budget
            .is_same(&left)
    );
}

#[test]
fn charges_split_merge_and_are_forgotten() {
    let (top, left, right) = family();
    let mut charge = left.charge(30).expect("fits");
    let part = charge.split(10).expect("it has as many");
    assert!(charge.split(21).is_none());
    assert_eq!((charge.bytes(), part.bytes(), top.used()), (20, 10, 30));
    charge.merge(part).expect("of one budget");
    assert_eq!((charge.bytes(), top.used()), (30, 30));
    let other = right.charge(5).expect("fits");
    let other = charge.merge(other).expect_err("of another budget");
    assert_eq!((charge.bytes(), other.bytes(), top.used()), (30, 5, 35));
    drop(other);

    let bytes = charge.forget();
    assert_eq!((bytes, top.used(), left.forgotten()), (30, 30, 30));
    let part = left.restore(12).expect("as many are forgotten");
    assert!(matches!(
        left.restore(19),
        Err(BudgetError::NotForgotten {
            asked: 19,
            forgotten: 18,
            ..
        })
    ));
    assert!(right.restore(1).is_err());
    drop(part);
    assert_eq!((top.used(), left.used()), (18, 18));
    drop(left.restore(18));
    assert_eq!((top.used(), left.forgotten()), (0, 0));
}

#[test]
fn a_limit_may_be_set_below_the_charged_bytes() {
    let (top, left, _) = family();
    let (one, two) = (left.charge(40).expect("fits"), left.charge(40).expect("fits"));
    top.set_limit(Some(50));
    assert_eq!((top.used(), top.remaining(), top.limit()), (80, 0, Some(50)));
    let refused = top.try_charge(1).expect_err("above the limit");
    assert_eq!((refused.used, refused.limit, refused.over_by()), (80, 50, 31));
    drop(one);
    assert!(top.charge(11).is_err());
    drop(top.charge(10).expect("as much as there is"));
    drop(two);
    top.set_limit(None);
    assert_eq!(top.limit(), None);
    drop(top.charge(1 << 50).expect("no limit"));
}

#[test]
fn charges_of_zero_and_of_huge_sizes_fit_or_are_refused() {
    let (top, left, _) = family();
    let full = top.charge(100).expect("fits");
    assert_eq!(left.charge(0).expect("nothing always fits").bytes(), 0);
    let nobody = Budget::root("no limit");
    for bytes in [u64::MAX, 1 << 63, (1 << 62) + 1, 1 << 62] {
        let refused = nobody
            .try_charge(bytes)
            .expect_err("more than there is in the world");
        assert!(refused.is_too_large());
        assert!(left.try_charge(bytes).is_err() && !refused.to_string().is_empty());
    }
    let most = nobody.charge((1 << 62) - 1).expect("all that can be counted");
    assert_eq!(nobody.used(), most.bytes());
    assert!(nobody.charge(1).is_err());
    for limit in [0, 1, u64::MAX, 5] {
        nobody.set_limit(Some(limit));
        assert!(nobody.charge(1).is_err());
    }
    drop((most, full));
    assert_eq!((nobody.used(), nobody.remaining(), top.remaining()), (0, 5, 100));
}

#[test]
fn reserved_and_allocated_bytes_do_not_mix() {
    let device = Budget::builder("device").limit(100).build().expect("a root");
    let pool = device.child_builder("pool").measure(Measure::Allocated);
    let pool = pool.limit(1000).build().expect("a pool");
    let scope = pool.child("scope").expect("a scope");
    let block = scope.charge(300).expect("the device is not asked");
    let segment = device.charge(100).expect("blocks do not count there");
    assert_eq!((device.used(), pool.used(), scope.used()), (100, 300, 300));
    assert_eq!(
        (segment.measure(), block.measure()),
        (Measure::Reserved, Measure::Allocated)
    );
    assert!(
        scope
            .nearest(Measure::Reserved)
            .expect("there is one")
            .is_same(&device)
    );
    assert!(scope.nearest(Measure::Allocated).expect("itself").is_same(&scope));
    assert!(device.nearest(Measure::Allocated).is_none());

    let mixed = scope.measured(Measure::Reserved).expect_err("it counts blocks");
    assert_eq!(
        mixed.to_string(),
        "budget 'device/pool/scope' counts allocated bytes, not reserved ones"
    );
    let mixed = pool.child_builder("device").measure(Measure::Reserved).build();
    assert!(matches!(mixed, Err(BudgetError::OtherMeasure { .. })));
    let (mut block, mut segment) = (block, segment);
    let segment_back = block
        .merge(segment.split(1).expect("it has one"))
        .expect_err("another measure");
    assert_eq!(segment_back.bytes(), 1);
}

#[test]
fn trees_are_bounded_and_forget_dropped_budgets() {
    let root = Budget::root("0");
    let mut last = root.clone();
    for level in 1..32 {
        last = last.child(level.to_string()).expect("not too deep");
    }
    assert!(matches!(
        last.child("33rd"),
        Err(BudgetError::TooDeep { most: 32 })
    ));
    let charge = last.charge(7).expect("fits");
    assert_eq!(root.used(), 7);
    // A charge keeps its budgets alive.
    drop(last);
    assert_eq!(root.children().len(), 1);
    drop(charge);
    assert_eq!((root.used(), root.children().len()), (0, 0));
    let many: Vec<_> = (0..50)
        .map(|n| root.child(n.to_string()).expect("a child"))
        .collect();
    let names: Vec<_> = root
        .children()
        .iter()
        .map(|child| child.name().to_owned())
        .collect();
    assert_eq!(names.len(), many.len());
    assert_eq!((names[0].as_str(), names[49].as_str()), ("0", "49"));
    assert!(many[3].parent().expect("a parent").is_same(&root));
}
