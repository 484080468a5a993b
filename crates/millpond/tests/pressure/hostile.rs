//! Simulated systems that write invalid data.

use crate::tree::Tree;
use millpond::pressure::Thresholds;
use proptest::prelude::*;

const FILES: [&str; 14] = [
    "proc/meminfo",
    "proc/self/limits",
    "proc/self/status",
    "proc/self/cgroup",
    "proc/self/mountinfo",
    "proc/pressure/memory",
    "proc/sys/vm/overcommit_memory",
    "sys/fs/cgroup/a/b/memory.max",
    "sys/fs/cgroup/a/b/memory.current",
    "sys/fs/cgroup/a/b/memory.stat",
    "sys/fs/cgroup/a/b/memory.pressure",
    "sys/fs/cgroup/a/b/memory.events.local",
    "sys/fs/cgroup/a/memory.current",
    "sys/fs/cgroup/a/memory.high",
];

/// A method to damage a file.
#[derive(Clone, Debug)]
enum Spoil {
    Replace(Vec<u8>),
    Number(u64),
    Cut(usize),
    Change(usize, u8),
}

fn spoil() -> impl Strategy<Value = Spoil> {
    prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..200).prop_map(Spoil::Replace),
        any::<u64>().prop_map(Spoil::Number),
        any::<usize>().prop_map(Spoil::Cut),
        (any::<usize>(), any::<u8>()).prop_map(|(at, byte)| Spoil::Change(at, byte)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_contents_of_the_files_give_a_result(
        spoils in proptest::collection::vec((proptest::sample::select(FILES.to_vec()), spoil()), 1..8),
        numbers: [u64; 6],
    ) {
        let tree = Tree::version_2("/a/b");
        let [max, high, current, inactive, active, above] = numbers;
        tree.folder("/a/b", &max.to_string(), &high.to_string(), current, inactive, active);
        tree.folder("/a", &above.to_string(), "max", current, active, inactive);
        tree.stalled("sys/fs/cgroup/a/b/memory.pressure", "1.00", "0.50");
        tree.events("/a/b", [max; 4]);
        tree.events("/a", [high; 4]);
        for (file, spoil) in spoils {
            let mut text = std::fs::read(tree.root().join(file)).unwrap_or_default();
            match spoil {
                Spoil::Replace(bytes) => text = bytes,
                Spoil::Number(n) => {
                    let old = String::from_utf8_lossy(&text).into_owned();
                    text = old.replace(|c: char| c.is_ascii_digit(), &n.to_string()).into_bytes();
                }
                Spoil::Cut(at) => text.truncate(at % (text.len() + 1)),
                Spoil::Change(at, byte) => {
                    if let Some(place) = at.checked_rem(text.len()).and_then(|at| text.get_mut(at)) {
                        *place = byte;
                    }
                }
            }
            tree.write(file, text);
        }
        let now = tree.readings().pressure(&Thresholds::default());
        for limit in now.limits() {
            prop_assert!(limit.available() <= limit.bytes, "{:?}", limit);
            prop_assert!(limit.reclaimable <= limit.used, "{:?}", limit);
        }
        let least = now.limits().iter().filter(|l| l.kind.is_enforced()).map(|l| l.available()).min();
        prop_assert_eq!(now.available(), least);
        prop_assert!(now.unread().len() <= 64 && now.stalls().len() <= 4);
    }
}
