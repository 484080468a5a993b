use super::*;
use proptest::prelude::*;

#[test]
fn limits_are_bytes_or_unlimited() {
    assert_eq!(amount("max\n"), Some(Amount::Unlimited));
    assert_eq!(amount(" 4096 \n"), Some(Amount::Bytes(4096)));
    assert_eq!(amount("18446744073709551615"), Some(Amount::Bytes(u64::MAX)));
    for odd in [
        "",
        "-1",
        "+1",
        "1 2",
        "maximum",
        "18446744073709551616",
        "4k",
        "0x10",
        "٣",
    ] {
        assert_eq!(amount(odd), None, "{odd:?}");
    }
    assert_eq!(amount_v1("9223372036854771712"), Some(Amount::Unlimited));
    assert_eq!(
        amount_v1("9223372036854710272"),
        Some(Amount::Unlimited),
        "pages of 64 KiB"
    );
    assert_eq!(amount_v1("1073741824"), Some(Amount::Bytes(1 << 30)));
}

#[test]
fn sizes_are_in_bytes() {
    assert_eq!(
        size("MemTotal:       24684092 kB"),
        Some(("MemTotal", 24_684_092 << 10))
    );
    assert_eq!(size("VmSize:\t    9000 kB"), Some(("VmSize", 9000 << 10)));
    for odd in [
        "HugePages_Total:       0",
        "MemTotal: kB",
        "MemTotal 5 kB",
        "M: 99999999999999999 kB",
        "",
    ] {
        assert_eq!(size(odd), None, "{odd:?}");
    }
    assert_eq!(entry("inactive_file 12"), Some(("inactive_file", 12)));
    assert_eq!(entry("inactive_file"), None);
}

#[test]
fn the_soft_limit_of_a_resource_is_read() {
    let line = "Max address space         1048576              unlimited            bytes     ";
    assert_eq!(resource(line, "Max address space"), Some(Amount::Bytes(1 << 20)));
    assert_eq!(resource(line, "Max address"), None, "\"space\" is not a limit");
    assert_eq!(resource(line, "Max data size"), None);
    let line = "Max data size             unlimited            unlimited            bytes     ";
    assert_eq!(resource(line, "Max data size"), Some(Amount::Unlimited));
}

#[test]
fn stalls_are_read_to_the_hundredth() {
    let line = stall("some avg10=1.53 avg60=0.87 avg300=100.00 total=58761459").expect("a line");
    assert_eq!(line.kind, StallKind::Some);
    assert_eq!(line.avg10, Share::hundredths(153));
    assert_eq!(line.avg60, Share::hundredths(87));
    assert_eq!(line.avg300, Share::WHOLE);
    assert_eq!(line.total, 58_761_459);
    let other = stall("full total=1 avg300=3 avg60=2.5 avg10=400.129 new=field").expect("another order");
    assert_eq!((other.avg10, other.avg60), (Share::WHOLE, Share::hundredths(250)));
    for odd in [
        "",
        "some",
        "any avg10=0.00 avg60=0.00 avg300=0.00 total=0",
        "some avg10=-1.00 avg60=0.00 avg300=0.00 total=0",
        "some avg10=nan avg60=0.00 avg300=0.00 total=0",
        "some avg10=1. avg60=0.00 avg300=0.00 total=0",
        "some avg10=.1 avg60=0.00 avg300=0.00 total=0",
        "some avg10=0.00 avg60=0.00 avg300=0.00",
        "some avg10 avg60=0.00 avg300=0.00 total=0",
    ] {
        assert_eq!(stall(odd), None, "{odd:?}");
    }
}

#[test]
fn only_the_unified_and_the_memory_hierarchy_are_read() {
    assert_eq!(membership("0::/a:b/c"), Some((Hierarchy::Unified, "/a:b/c")));
    assert_eq!(membership("4:cpu,memory:/x"), Some((Hierarchy::Memory, "/x")));
    for other in [
        "9:name=systemd:/",
        "3:cpuset:/memory",
        "0::",
        "4:memory",
        "1:memoryish:/",
        "0::x",
        "",
    ] {
        assert_eq!(membership(other), None, "{other:?}");
    }
}

#[test]
fn mounts_of_cgroups_are_found_among_others() {
    let line = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory";
    let found = mount(line).expect("v1");
    assert_eq!(
        (found.hierarchy, &*found.point),
        (Hierarchy::Memory, "/sys/fs/cgroup/memory")
    );
    let line = r"35 31 0:32 /docker/a\040b /sys/fs/c\134g rw - cgroup2 none rw,nsdelegate";
    let found = mount(line).expect("v2");
    assert_eq!(found.hierarchy, Hierarchy::Unified);
    assert_eq!((&*found.root, &*found.point), ("/docker/a b", r"/sys/fs/c\g"));
    for other in [
        "36 31 0:33 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu",
        "36 31 0:33 / /memory rw - tmpfs memory rw,memory",
        "35 31 0:32 / - cgroup2 none rw",
        r"35 31 0:32 / /\377 rw - cgroup2 none rw",
        "cgroup2",
        "",
    ] {
        assert_eq!(mount(other), None, "{other:?}");
    }
}

#[test]
fn a_relative_path_never_leads_upwards() {
    assert_eq!(below("/a/b/c", "/a"), Some("b/c"));
    assert_eq!(below("/a/b", "/"), Some("a/b"));
    assert_eq!(below("/a", "/a"), Some(""));
    assert_eq!(below("/", "/"), Some(""));
    assert_eq!(below("/ab", "/a"), None);
    assert_eq!(below("/", "/a"), None);
    assert_eq!(below("/a/../../etc", "/"), None);
    assert_eq!(below("/../b", "/"), None);
    assert_eq!(below("/a..b", "/"), Some("a..b"));
}

/// Produces text that resembles the system's: parts of it in any order, with arbitrary text between them.
fn nearly() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        proptest::sample::select(vec![
            "max",
            "some",
            "full",
            "avg10=",
            "avg60=",
            "avg300=",
            "total=",
            "0.00",
            "99.999",
            "kB",
            ":",
            " ",
            "\t",
            "0",
            "0::/",
            "4:memory:/",
            "..",
            "/",
            " - ",
            "cgroup2",
            "cgroup",
            "memory",
            "\\040",
            "\\",
            "MemTotal:",
            "Max address space",
            "unlimited",
            "18446744073709551615",
            "9",
            "-",
            "+",
            "=",
            ".",
        ])
        .prop_map(str::to_owned),
        any::<String>(),
        any::<u64>().prop_map(|n| n.to_string()),
    ];
    proptest::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn no_text_makes_a_parser_panic(text in nearly()) {
        let _ = (number(&text), amount(&text), amount_v1(&text), entry(&text), size(&text));
        let _ = (resource(&text, "Max address space"), membership(&text), mount(&text));
        if let Some(stall) = stall(&text) {
            prop_assert!(stall.avg10 <= Share::WHOLE && stall.avg60 <= Share::WHOLE);
        }
        if let Some(way) = below(&text, "/") {
            prop_assert!(!way.split('/').any(|step| step == ".."));
        }
        if let Some(plain) = unescape(&text) {
            prop_assert!(plain.len() <= text.len());
        }
    }

    #[test]
    fn written_values_are_read_back(bytes: u64, hundredths in 0u32..=10_000, total: u64) {
        prop_assert_eq!(amount(&format!("{bytes}\n")), Some(Amount::Bytes(bytes)));
        let line = format!("anon {bytes}");
        prop_assert_eq!(entry(&line), Some(("anon", bytes)));
        let kib = bytes >> 10;
        let line = format!("MemFree:{kib:>16} kB");
        prop_assert_eq!(size(&line), Some(("MemFree", kib << 10)));
        let avg = format!("{}.{:02}", hundredths / 100, hundredths % 100);
        let line = stall(&format!("full avg10={avg} avg60={avg} avg300={avg} total={total}")).expect("a line");
        prop_assert_eq!((line.avg300, line.total), (Share::hundredths(hundredths), total));
    }
}
