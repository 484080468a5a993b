//! The number of tags. This is a program of its own because it uses all of them.

use millpond::Tag;

#[test]
fn new_tags_beyond_the_limit_are_counted_as_others() {
    let first = Tag::new("first");
    let mut all = std::collections::HashSet::from([first]);
    let mut n = 0u32;
    let last = loop {
        let tag = Tag::new(&format!("name {n}"));
        if tag == Tag::OTHERS {
            break n;
        }
        assert!(all.insert(tag), "{tag:?} twice");
        n += 1;
    };
    assert_eq!(all.len(), 65_536);
    assert_eq!(Tag::new(&format!("name {last}")), Tag::OTHERS);
    assert_eq!((Tag::new("first"), first.name()), (first, "first"));
    let known = format!("name {}", last - 1);
    assert_eq!(Tag::new(&known).name(), known);
    assert_eq!((Tag::OTHERS.name(), Tag::NONE.name()), ("other tags", "untagged"));
}
